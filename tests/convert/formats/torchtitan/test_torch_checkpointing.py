"""Checkpoints of torch_checkpointing 0.1, TorchTitan's second backend, by ranks on meshes of one and two axes."""

import itertools
import json
import math
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from damaged_files import outcomes_of_damage
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.commands.follow import following
from lt_convert.commands.follow.following import FollowRequest
from lt_convert.formats import location
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData

State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def titan(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, State]:
    """A run with config.json, and its tensors under TorchTitan's names."""
    place = tmp_path_factory.mktemp("titan")
    conversion.convert(Request(str(models["grouped"]), "torchtitan", str(place / "dcp")))
    metadata = pickle.loads((place / "dcp" / ".metadata").read_bytes())
    state = {name: torch.empty(entry.size) for name, entry in metadata.state_dict_metadata.items() if hasattr(entry, "size")}
    torch.distributed.checkpoint.load(state, checkpoint_id=place / "dcp", no_dist=True)
    return models["grouped"], {name: tensor for name, tensor in state.items() if not name.startswith("padding.")}


def placements(tensor: torch.Tensor, axes: int, number: int) -> list[Any]:
    """Rows over the first axis of the mesh; over the second columns, rows again, or none."""
    second = (Shard(tensor.dim() - 1), Shard(0), Replicate())[number % 3]
    return [Replicate() if number % 5 == 4 else Shard(0), second][:axes]


def write(step: Path, state: State, mesh_shape: tuple[int, ...]) -> Path:
    """The files of every rank, in one process: each rank's process group has no peers."""
    step.mkdir(parents=True)
    world = math.prod(mesh_shape)
    described: dict[str, Any] = {}
    for rank in range(world):
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", mesh_shape)
            local: dict[str, Any] = {}
            for number, (name, tensor) in enumerate(state.items()):
                placed = placements(tensor, len(mesh_shape), number)
                shape, offsets = compute_local_shape_and_global_offset(tensor.shape, mesh, placed)
                indices = [slice(offset, offset + size) for offset, size in zip(offsets, shape, strict=True)]
                values = tensor[tuple(indices)].clone()
                local[name] = DTensor.from_local(
                    values, mesh, placed, run_check=False, shape=tensor.shape, stride=tensor.stride()
                )
                described[json.dumps([name])] = [metadata_of(tensor, mesh_shape, placed)]
            torch.save(local, step / f"model_{rank}.pt")
            torch.save({"step": 10}, step / f"train_state_{rank}.pt")
        finally:
            dist.destroy_process_group()
    item = {"nested_path_to_metadata": described, "rank_to_layout_info": dict.fromkeys(range(world))}
    (step / "metadata.pkl").write_bytes(pickle.dumps({"metadata": {"model": item}, "world_size": world, "version": "2.0"}))
    return step


def metadata_of(tensor: torch.Tensor, mesh_shape: tuple[int, ...], placed: list[Any]) -> dict[str, Any]:
    """As the library describes a tensor in `metadata.pkl`."""
    ranks = tuple(range(math.prod(mesh_shape)))
    mesh = {"device_type": "cpu", "mesh_data": ranks, "mesh_dim_names": None, "mesh_shape": mesh_shape}
    data = {
        "dtype": str(tensor.dtype),
        "global_shape": list(tensor.shape),
        "mesh_spec": mesh,
        "placements": [{"dim": one.dim, "type": "Shard"} if isinstance(one, Shard) else {"type": "Replicate"} for one in placed],
        "stride": list(tensor.stride()),
    }
    return {"ranks": ranks, "sharding_metadata": {"type": "DTensorShardingMetadata", "data": data}}


@pytest.fixture
def step(titan: tuple[Path, State], tmp_path: Path) -> Iterator[Path]:
    model, state = titan
    (tmp_path / "run").mkdir()
    shutil.copy(model / "config.json", tmp_path / "run")
    yield write(tmp_path / "run" / "step-10", state, (2,))


@pytest.mark.parametrize("mesh_shape", [(1,), (3,), (2, 2), (3, 2)])
def test_ranks_on_meshes(mesh_shape: tuple[int, ...], titan: tuple[Path, State], tmp_path: Path) -> None:
    model, state = titan
    run = tmp_path / "run"
    write(run / "step-10", state, mesh_shape)
    shutil.copy(model / "config.json", run)
    assert conversion.convert(Request(str(run), "hf", str(tmp_path / "hf"))).iteration == 10
    expected, converted = (load_file(place / "model.safetensors") for place in (model, tmp_path / "hf"))
    assert converted.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in converted.items())


def test_formats_in_one_run(step: Path, titan: tuple[Path, State], tmp_path: Path) -> None:
    """DCP, this one, and one that is still being written; the newest complete step is the same for all commands."""
    run = step.parent
    conversion.convert(Request(str(titan[0]), "torchtitan", str(run / "step-5")))
    shutil.copytree(step, run / "step-20")
    (run / "step-20" / "metadata.pkl").unlink()
    with Files() as files:
        assert location.locate(str(run), files) == (str(step), "torchtitan")
        with pytest.raises(BadData, match=r"without metadata\.pkl"):
            location.locate(str(run / "step-20"), files)
    assert following.follow(FollowRequest(str(run), "hf", str(tmp_path / "followed")), None, lambda _: None)
    assert sorted(path.name for path in (tmp_path / "followed").iterdir() if path.is_dir()) == ["step-10", "step-5"]


def edit(step: Path, change: Any) -> None:
    metadata = pickle.loads((step / "metadata.pkl").read_bytes())
    change(metadata, metadata["metadata"]["model"])
    (step / "metadata.pkl").write_bytes(pickle.dumps(metadata))


def data_of(item: Any) -> Any:
    return item["nested_path_to_metadata"]['["norm.weight"]'][0]["sharding_metadata"]["data"]


CHANGES = {
    "version": lambda metadata, item: metadata.update(version="3.0"),
    "axis": lambda metadata, item: data_of(item)["placements"][0].update(dim=1),
    "ranks": lambda metadata, item: data_of(item)["mesh_spec"].update(mesh_shape=(1 << 40,)),
    "shape": lambda metadata, item: data_of(item).update(global_shape=[33]),
    "size": lambda metadata, item: data_of(item).update(global_shape=[-1]),
    "name": lambda metadata, item: item["nested_path_to_metadata"].update({'["a","b"]': []}),
    "layout": lambda metadata, item: item["rank_to_layout_info"].update({0: {"file_path": "../x"}}),
    "missing": lambda metadata, item: item["nested_path_to_metadata"].update(
        {'["more"]': item["nested_path_to_metadata"]['["norm.weight"]']}
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_metadata_that_do_not_fit(change: str, step: Path, tmp_path: Path) -> None:
    edit(step, CHANGES[change])
    with pytest.raises(BadData):
        conversion.convert(Request(str(step), "hf", str(tmp_path / "hf")))


def test_any_damage_is_refused_or_harmless(step: Path, tmp_path: Path) -> None:
    outcomes = outcomes_of_damage(step, sorted(step.iterdir()), tmp_path / "hf", 25, 0.5)
    assert outcomes == {"harmless", "refused"}


class Exploit:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_nothing_is_executed_and_damage_is_named(step: Path, tmp_path: Path) -> None:
    hostile = Exploit(tmp_path / "ran")
    for name, to_file in itertools.product(("metadata.pkl", "model_0.pt", "model_1.pt"), (True, False)):
        content = (step / name).read_bytes()
        if to_file and name.startswith("model"):
            torch.save({"norm.weight": hostile}, step / name)
        elif to_file:
            (step / name).write_bytes(pickle.dumps(hostile))
        else:
            (step / name).write_bytes(content[:-40])
        with pytest.raises(BadData, match=name):
            conversion.convert(Request(str(step), "hf", str(tmp_path / "hf")))
        (step / name).write_bytes(content)
    (step / "model_1.pt").unlink()
    with pytest.raises(BadData, match=r"model_1\.pt: missing"):
        conversion.convert(Request(str(step), "hf", str(tmp_path / "hf")))
    assert not (tmp_path / "ran").exists()
