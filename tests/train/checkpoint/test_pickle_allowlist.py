"""A checkpoint that names code is refused before torch reads it."""

import argparse
import collections
import importlib
import io
import os
import pickle
import signal
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from running import SMALL, train
from torch.distributed import checkpoint as torch_checkpoint
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from lt_shared.console import BadData
from lt_shared.contracts.manifest import Dataset
from lt_train.checkpoint import pickle_allowlist

DTYPES = [
    torch.bfloat16, torch.bool, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.int16, torch.int32,
    torch.int64, torch.int8, torch.uint8,
]  # fmt: skip
# Those with which torch makes a tensor in a file of `torch.save` from a storage that has the type in its name.
STORED = [torch.bfloat16, torch.uint8, torch.float32, torch.float16, torch.int64]
OF_MEGATRON = [
    "megatron.core.enums.ModelType",
    "megatron.core.rerun_state_machine.RerunDiagnostic",
    "megatron.core.rerun_state_machine.RerunMode",
    "megatron.core.rerun_state_machine.RerunState",
    "megatron.core.transformer.enums.AttnBackend",
    "megatron.core.transformer.enums.CudaGraphScope",
]
# One name in Python 3.13, the other before; numpy renamed its package in 2.0.
OF_OTHER_VERSIONS = ["pathlib._local.PosixPath", "pathlib.PosixPath", "numpy._core.multiarray._reconstruct",
                     "numpy.core.multiarray._reconstruct"]  # fmt: skip


class Malicious:
    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def test_own_checkpoints_pass(checkpoint: Path) -> None:
    pickle_allowlist.check(checkpoint)


def test_malicious_index(tmp_path: Path, unrecorded: Path, dataset: Dataset) -> None:
    metadata = pickle.loads((unrecorded / ".metadata").read_bytes())
    metadata.planner_data = Malicious(tmp_path / "ran")
    (unrecorded / ".metadata").write_bytes(pickle.dumps(metadata))
    result = train(*SMALL, "--train-iters", "2", "--save", str(unrecorded.parent), dataset.prefix)
    assert result.code == 65
    assert "system" in result.err
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    """A checkpoint that torch has written by itself, with a tensor of every type, and two objects."""
    state = {str(dtype): torch.zeros(2, 3, dtype=dtype) for dtype in DTYPES}
    objects = {"object": io.BytesIO(b"state"), "another": [1, 2]}
    torch_checkpoint.save(state | objects, checkpoint_id=tmp_path / "stock", no_dist=True)
    return tmp_path / "stock"


def read_metadata(directory: Path) -> Any:
    return pickle.loads((directory / ".metadata").read_bytes())


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def naming(*names: str) -> bytes:
    """Operations of a pickle that put each of the names on the stack and take it off."""
    parts = (name.rpartition(".") for name in names)
    return b"".join(f"c{module}\n{name}\n0".encode() for module, _, name in parts)


def archive(content: bytes) -> bytes:
    """A file of `torch.save` with this pickle in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/data.pkl", content)
    return buffer.getvalue()


def append_object(directory: Path, content: bytes) -> None:
    """What the checkpoint has as "object" becomes `content`, at the end of the shard."""
    metadata = read_metadata(directory)
    place = next(place for place in metadata.storage_data if place.fqn == "object")
    info = metadata.storage_data[place]
    shard = directory / info.relative_path
    metadata.storage_data[place] = type(info)(info.relative_path, shard.stat().st_size, len(content))
    shard.write_bytes(shard.read_bytes() + content)
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))


def append_to_index(directory: Path, operations: bytes) -> None:
    """The index does these operations, too, of an unpickler, and stays what it is."""
    content = (directory / ".metadata").read_bytes()
    assert content.endswith(b".")
    (directory / ".metadata").write_bytes(content[:-1] + operations + b".")


def test_what_torch_writes_passes(stock: Path) -> None:
    """An index with the plan of its writer, and objects of each kind that Megatron keeps there."""
    pickle_allowlist.check(stock)
    planner = DefaultSavePlanner()
    planner.set_up_planner({"tensor": torch.zeros(2), "object": io.BytesIO()}, is_coordinator=True)
    metadata = read_metadata(stock)
    metadata.planner_data = [collections.OrderedDict(plan=planner.create_local_plan()), Path("a")]
    (stock / ".metadata").write_bytes(pickle.dumps(metadata))
    pickle_allowlist.check(stock)
    tensors = [torch.zeros(2, dtype=dtype) for dtype in STORED]
    standard = [argparse.Namespace(a=1), types.SimpleNamespace(a=1), collections.OrderedDict(a=1), Path("a"), signal.SIGTERM]
    append_object(stock, saved([*tensors, *DTYPES, *standard, io.BytesIO(b"a"), b"bytes", np.random.get_state()]))
    pickle_allowlist.check(stock)


def test_what_other_versions_write_passes(stock: Path) -> None:
    append_object(stock, archive(naming(*OF_MEGATRON, *OF_OTHER_VERSIONS) + b"N."))
    pickle_allowlist.check(stock)
    append_to_index(stock, naming(*OF_OTHER_VERSIONS[:2]))
    pickle_allowlist.check(stock)


@pytest.mark.parametrize("name", OF_MEGATRON)
def test_megatron_has_these_names(name: str) -> None:
    module, _, member = name.rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), member), type)


@pytest.mark.parametrize("name", ["argparse.Namespace", "torch._utils._rebuild_tensor_v2", "torch.load", *OF_MEGATRON[:1]])
def test_a_name_that_is_not_for_an_index(stock: Path, name: str) -> None:
    append_to_index(stock, naming(name, "collections.OrderedDict", "types.MethodType"))
    with pytest.raises(BadData) as caught:
        pickle_allowlist.check(stock)
    assert str(caught.value) == f"{stock}/.metadata: refers to {name}, types.MethodType, which no checkpoint needs"


@pytest.mark.parametrize("name", ["torch.Size", "torch.load", "megatron.core.enums.Model", "io.open"])
def test_a_name_that_is_not_for_an_object(stock: Path, name: str) -> None:
    append_object(stock, archive(naming(name, "argparse.Namespace") + b"N."))
    with pytest.raises(BadData) as caught:
        pickle_allowlist.check(stock)
    assert str(caught.value) == f"{stock}/__0_0.distcp: object: refers to {name}, which no checkpoint needs"
    assert caught.value.hint == "do not load it: it may run code"


def test_malicious_object(tmp_path: Path, stock: Path) -> None:
    append_object(stock, saved(Malicious(tmp_path / "ran")))
    with pytest.raises(BadData, match="system"):
        pickle_allowlist.check(stock)
    assert not (tmp_path / "ran").exists()


def test_an_object_that_is_cut_off(stock: Path) -> None:
    content = saved([1])
    append_object(stock, content)
    shard = stock / "__0_0.distcp"
    size = shard.stat().st_size
    os.truncate(shard, size - 1)
    with pytest.raises(BadData) as caught:
        pickle_allowlist.check(stock)
    assert str(caught.value) == f"{shard}: ends at {size - 1} bytes, {size} are needed"


@pytest.mark.parametrize(
    ("kind", "reason"), [("none", "missing"), ("directory", "not a regular file"), ("pipe", "not a regular file")]
)
def test_what_is_no_shard(kind: str, reason: str, stock: Path) -> None:
    """Nobody waits for the bytes of a pipe."""
    shard = stock / "__0_0.distcp"
    shard.unlink()
    {"none": lambda path: None, "directory": Path.mkdir, "pipe": os.mkfifo}[kind](shard)
    with pytest.raises(BadData) as caught:
        pickle_allowlist.check(stock)
    assert str(caught.value) == f"{shard}: {reason}"


def first_tensor(metadata: Any) -> Any:
    return next(entry for entry in metadata.state_dict_metadata.values() if isinstance(entry, TensorStorageMetadata))


def first_stored(metadata: Any) -> Any:
    return next(info for place, info in metadata.storage_data.items() if place.fqn == "object")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda metadata: vars(metadata).pop("storage_data"), "has no attribute"),
        (lambda metadata: setattr(metadata, "storage_data", [1]), "has no attribute"),
        (lambda metadata: setattr(metadata, "state_dict_metadata", [1]), "list indices"),
        (lambda metadata: metadata.state_dict_metadata.update(another=7), "has no attribute 'name'"),
        (lambda metadata: setattr(first_stored(metadata), "relative_path", ["a"]), "names a shard that is no text"),
        (lambda metadata: setattr(first_stored(metadata), "offset", -5), "not a natural number"),
        (lambda metadata: setattr(first_stored(metadata), "length", "x"), "not a natural number"),
        (lambda metadata: setattr(first_stored(metadata), "length", 1 << 60), "ends at"),
        (lambda metadata: setattr(first_tensor(metadata), "size", [[1]]), "not a natural number"),
        (lambda metadata: setattr(first_tensor(metadata), "chunks", [1]), "has no attribute 'offsets'"),
        (lambda metadata: setattr(first_tensor(metadata).chunks[0], "offsets", [-1, 0]), "not a natural number"),
        (lambda metadata: setattr(first_tensor(metadata).chunks[0], "sizes", [2, -3]), "not a natural number"),
        (lambda metadata: setattr(first_tensor(metadata).chunks[0], "sizes", [True, 3]), "not a natural number"),
        (lambda metadata: setattr(first_tensor(metadata), "properties", None), "has no attribute 'state'"),
        (
            lambda metadata: setattr(first_tensor(metadata).properties, "dtype", argparse.Namespace),
            "Namespace, which no checkpoint",
        ),
        (lambda metadata: setattr(first_tensor(metadata).properties, "dtype", type(Path())), "a tensor has no type"),
        (lambda metadata: setattr(first_tensor(metadata).properties, "dtype", type(metadata)), "a tensor has no type"),
    ],
)
def test_an_index_of_another_structure(change: Any, reason: str, stock: Path) -> None:
    """None of them is for torch, which would end in an exception of its own, or take all memory."""
    metadata = read_metadata(stock)
    change(metadata)
    (stock / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(BadData, match=reason):
        pickle_allowlist.check(stock)
