"""Checkpoints of the library torch_checkpointing 0.1, TorchTitan's second backend: a file per item and rank, and `metadata.pkl`.

`model_3.pt` is the dict that rank 3 has of the item `model`; a sharded tensor in it is a DTensor, of which the local values are
taken. `metadata.pkl` has plain values only: the whole shape of each tensor, the mesh of ranks, and along which axis each axis of
the mesh cuts the tensor. The library renames the directory when all ranks have written.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lt_convert.containers import torch_files
from lt_convert.tensors.source_files import INCOMPLETE, Files
from lt_convert.tensors.tensor import Tensor, assemble
from lt_shared import pickles
from lt_shared.console import BadData

METADATA = "metadata.pkl"
_VERSION = "2.0"
_MODEL = "model"
_FILE = re.compile(r"(?P<item>\w+)_(?P<rank>\d+)\.pt")
_DTENSOR = "torch._tensor._rebuild_from_type_v2"
MAXIMUM_BYTES = 128 << 20
MAXIMUM_RANKS = 100_000

_Values = tuple[Any, torch_files.Locate]


@dataclasses.dataclass(frozen=True)
class Placement:
    """How a tensor of `shape` lies on a mesh of ranks: `axes` has for each axis of the mesh the tensor's axis, or None."""

    dtype: str
    shape: tuple[int, ...]
    mesh_shape: tuple[int, ...]
    ranks: tuple[int, ...]
    axes: tuple[int | None, ...]

    def slices(self) -> list[tuple[int, tuple[range, ...]]]:
        """Each distinct slice once: (rank that has it, its indices). The last parts along an axis may be shorter."""
        slices: dict[tuple[range, ...], int] = {}
        for rank, coordinates in zip(self.ranks, itertools.product(*map(range, self.mesh_shape)), strict=True):
            indices = [range(size) for size in self.shape]
            for axis, parts, part in zip(self.axes, self.mesh_shape, coordinates, strict=True):
                if axis is not None:
                    length = -(-len(indices[axis]) // parts)
                    indices[axis] = indices[axis][part * length : (part + 1) * length]
            slices.setdefault(tuple(indices), rank)
        return [(rank, indices) for indices, rank in slices.items()]


def recognise(names: Sequence[str]) -> bool:
    return METADATA in names and any((match := _FILE.fullmatch(name)) and match["item"] == _MODEL for name in names)


def read(directory: str, files: Files) -> dict[str, Tensor]:
    """Locate the tensors of the item `model`.

    Raises BadData for a file that is missing or damaged, and for slices that do not fit.
    """
    path = f"{directory}/{METADATA}"
    size = files.size_bytes(path)
    if size > MAXIMUM_BYTES:
        raise BadData(f"{path}: has {size} bytes, no metadata have more than {MAXIMUM_BYTES}")
    content = pickles.load_plain(files.read(path, 0, size), path)
    placements = _placements(content, path)
    of_rank: dict[int, _Values] = {}
    tensors: dict[str, Tensor] = {}
    for name, placement in placements.items():
        pieces = []
        for rank, indices in placement.slices():
            if not all(map(len, indices)):
                continue
            if rank not in of_rank:
                of_rank[rank] = _load(f"{directory}/{_MODEL}_{rank}.pt", files)
            pieces.append((indices, _local(name, rank, *of_rank[rank], placement, indices, directory)))
        tensors[name] = assemble(name, placement.shape, pieces).named(name)
        tensors[name].check_cover()
    return tensors


def other_items(names: Sequence[str]) -> list[str]:
    """The items beside `model` that a directory with these names has files of."""
    return sorted({match["item"] for name in names if (match := _FILE.fullmatch(name))} - {_MODEL})


def _load(path: str, files: Files) -> _Values:
    content, locate = torch_files.load(path, files)
    if not isinstance(content, dict):
        raise BadData(f"{path}: holds no dict of tensors")
    return content, locate


def _placements(content: Any, path: str) -> dict[str, Placement]:
    """Read the tensors of the item `model` from the metadata. Raises BadData for malformed ones."""
    placements = {}
    try:
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']!r:.20}, known is {_VERSION}")
        item = content["metadata"][_MODEL]
        if any(layout is not None for layout in item["rank_to_layout_info"].values()):
            raise ValueError("its files have names of their own")
        for encoded, groups in item["nested_path_to_metadata"].items():
            match = re.fullmatch(r'\["([^"\\]+)"\]', encoded)
            if match is None or len(groups) != 1 or groups[0]["sharding_metadata"]["type"] != "DTensorShardingMetadata":
                raise ValueError(f"{encoded!r:.80} is no tensor that all ranks describe alike")
            data = groups[0]["sharding_metadata"]["data"]
            mesh = data["mesh_spec"]
            axes = tuple(None if one["type"] == "Replicate" else one["dim"] for one in data["placements"])
            placement = Placement(
                data["dtype"].removeprefix("torch."),
                tuple(data["global_shape"]),
                tuple(mesh["mesh_shape"]),
                tuple(mesh["mesh_data"]),
                axes,
            )
            _check(placement)
            placements[match[1]] = placement
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadData(f"{path}: not the metadata of torch_checkpointing: {error}") from None
    return placements


def _check(placement: Placement) -> None:
    numbers = (*placement.shape, *placement.mesh_shape, *placement.ranks)
    if not all(type(number) is int and number >= 0 for number in numbers) or not len(placement.axes) == len(placement.mesh_shape):
        raise ValueError("a size is no natural number")
    if not 0 < len(placement.ranks) <= MAXIMUM_RANKS or math.prod(placement.mesh_shape) != len(placement.ranks):
        raise ValueError(f"a mesh of {placement.mesh_shape!r:.80} with {len(placement.ranks)} ranks")
    if not all(axis is None or (type(axis) is int and 0 <= axis < len(placement.shape)) for axis in placement.axes):
        raise ValueError(f"axes {placement.axes!r:.80} of {len(placement.shape)}")


def _local(
    name: str,
    rank: int,
    content: Mapping[str, Any],
    locate: torch_files.Locate,
    placement: Placement,
    indices: tuple[range, ...],
    directory: str,
) -> Tensor:
    """The values that a rank has of a tensor."""
    path = f"{directory}/{_MODEL}_{rank}.pt"
    record = content.get(name)
    if isinstance(record, pickles.Record) and record.name == _DTENSOR and len(record.arguments) == 4:
        # The attributes of an object with slots are the second of two states.
        states = record.arguments[3] if isinstance(record.arguments[3], tuple) else (record.arguments[3],)
        record = next((state["_local_tensor"] for state in states if isinstance(state, dict) and "_local_tensor" in state), None)
    if record is None or not torch_files.is_tensor(record):
        raise BadData(f"{path}: has no tensor {name}, which {METADATA} promises", INCOMPLETE)
    tensor = torch_files.located(name, record, locate)
    expected = tuple(map(len, indices))
    if tensor.shape != expected or tensor.dtype != placement.dtype:
        raise BadData(f"{path}: {name} is {tensor.dtype} {list(tensor.shape)}, expected {placement.dtype} {list(expected)}")
    return tensor
