"""Distributed checkpoints: torch loads what is written here, and what torch saves is read here, however it was cut."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as stock

from lt_convert.commands.output_writer import contents
from lt_convert.containers import dcp
from lt_convert.containers.dcp import Entry
from lt_convert.tensors import blocks
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor, zeros
from lt_shared.console import BadData

STATE = {
    "matrix": torch.arange(42.0).reshape(6, 7),
    "layers": torch.arange(24, dtype=torch.int64).reshape(3, 2, 4).to(torch.bfloat16),
    "scalar": torch.tensor(2.5),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    state = STATE | {"settings": {"a": 1}, "transposed": STATE["matrix"].T}
    stock.save(state, checkpoint_id=tmp_path / "saved", no_dist=True)
    return tmp_path / "saved"


def read(directory: Path) -> dict[str, torch.Tensor]:
    with Files() as files:
        found = dcp.read(str(directory), files)
        tensors = {key: found.tensor(key) for key in found.entries}
        return {
            key: torch.frombuffer(bytearray(blocks.read(tensor, files).tobytes()), dtype=getattr(torch, tensor.dtype)).reshape(
                tensor.shape
            )
            for key, tensor in tensors.items()
        }


def test_what_torch_saves_is_read(saved: Path) -> None:
    found = read(saved)
    assert found.keys() == {*STATE, "transposed"}
    assert all(torch.equal(found[key], tensor) for key, tensor in STATE.items())
    assert torch.equal(found["transposed"], STATE["matrix"].T)


def write(directory: Path, entries: list[Entry], objects: dict[str, Any]) -> None:
    with Files() as files:
        reader = blocks.TensorReader(files)
        directory.mkdir()
        for output in dcp.outputs(entries, objects):
            (directory / output.name).write_bytes(
                b"".join(bytes(data) for segment in output.segments for data in contents(segment, reader))
            )


@pytest.mark.parametrize(("chunk_bytes", "file_bytes", "files"), [(1 << 30, 1 << 30, 1), (30, 4000, 2), (1, 1, 15)])
def test_torch_loads_what_is_written(
    chunk_bytes: int, file_bytes: int, files: int, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcp, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(dcp, "FILE_BYTES", file_bytes)
    with Files() as opened:
        source = dcp.read(str(saved), opened)
        tensors = {key: source.tensor(key) for key in STATE}
    stack = tensors["layers"]
    chunks = tuple(((layer, 0, 0), f"layer {layer}", stack.at(layer).expanded(1)) for layer in range(3))
    entries = [
        Entry("layers", "bfloat16", stack.shape, chunks),
        *(Entry.whole(key, tensors[key]) for key in ("matrix", "scalar")),
    ]
    write(tmp_path / "written", entries, {"extra": [None], "more": {"a": 1.5}})
    loaded: dict[str, Any] = {key: torch.zeros_like(tensor) for key, tensor in STATE.items()} | {"extra": 0, "more": 0}
    stock.load(loaded, checkpoint_id=tmp_path / "written", no_dist=True)
    assert all(torch.equal(loaded[key], tensor) for key, tensor in STATE.items())
    assert (loaded["extra"], loaded["more"]) == ([None], {"a": 1.5})
    assert len(list((tmp_path / "written").glob("*.distcp"))) == files
    again = read(tmp_path / "written")
    assert all(torch.equal(again[key], tensor) for key, tensor in STATE.items())
    with Files() as opened:
        objects = dcp.read(str(tmp_path / "written"), opened)
        assert objects.object("more") == {"a": 1.5}


def edit(directory: Path, change: Any) -> None:
    metadata = pickle.loads((directory / ".metadata").read_bytes())
    change(metadata, {key.fqn: location for key, location in metadata.storage_data.items()})
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))


def set_shape(sizes: list[int]) -> Any:
    def change(metadata: Any, locations: Any) -> None:
        entry = metadata.state_dict_metadata["matrix"]
        entry.size = torch.Size(sizes) if min(sizes) >= 0 else tuple(sizes)
        entry.chunks[0].sizes = entry.size

    return change


def set_location(**fields: Any) -> Any:
    return lambda metadata, locations: [setattr(locations["matrix"], field, value) for field, value in fields.items()]


def set_dtype(dtype: torch.dtype) -> Any:
    return lambda metadata, locations: setattr(metadata.state_dict_metadata["matrix"].properties, "dtype", dtype)


def change_chunks(change: Any) -> Any:
    return lambda metadata, locations: change(metadata.state_dict_metadata["matrix"].chunks)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_shape([6, 8]), r"is float32 \[6, 7\], expected float32 \[6, 8\]"),
        (set_shape([1 << 40, 1 << 40]), r"expected float32 \[1099511627776, 1099511627776\]"),
        (set_shape([-1, 7]), "not a natural number"),
        (set_location(relative_path="../elsewhere.distcp"), "outside the checkpoint: '../elsewhere.distcp'"),
        (set_location(relative_path="/etc/passwd"), "outside the checkpoint"),
        (set_location(relative_path=".."), "outside the checkpoint"),
        (set_location(offset=-64), "not a natural number"),
        (set_location(offset=1 << 50), "lies beyond the end"),
        (set_location(length=10), "damaged|not a torch file"),
        (set_location(transform_descriptors=["zstd"]), "compressed or encrypted"),
        (change_chunks(lambda chunks: chunks.clear()), "do not cover"),
        (change_chunks(lambda chunks: chunks.append(chunks[0])), "do not cover"),
        (set_dtype(torch.complex64), "complex64"),
        (set_dtype(torch.float64), "expected float64"),
        (lambda metadata, locations: metadata.storage_data.clear(), "has no storage_data for the chunk of matrix"),
        (lambda metadata, locations: setattr(metadata, "storage_data", None), "not the metadata"),
    ],
)
def test_damaged_metadata_is_refused(change: Any, message: str, saved: Path) -> None:
    edit(saved, change)
    with pytest.raises(BadData, match=message):
        read(saved)


def test_chunks_of_other_tensors_and_files_that_are_gone(saved: Path) -> None:
    def swap(metadata: Any, locations: Any) -> None:
        locations["matrix"].offset, locations["matrix"].length = locations["scalar"].offset, locations["scalar"].length

    edit(saved, swap)
    with pytest.raises(BadData, match=r"is float32 \[\], expected float32 \[6, 7\]"):
        read(saved)
    (saved / "__0_0.distcp").unlink()
    with pytest.raises(BadData, match=r"__0_0.distcp: missing"):
        read(saved)


def test_metadata_runs_nothing(saved: Path) -> None:
    class Exploit:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(saved / "ran"),)

    def hide(metadata: Any, locations: Any) -> None:
        metadata.planner_data = Exploit()

    edit(saved, hide)
    assert not (saved / "ran").exists()
    with pytest.raises(BadData, match="not a readable pickle"):
        read(saved)
    assert not (saved / "ran").exists()


def test_tensor_names_are_lazy(saved: Path) -> None:
    with Files() as files:
        tensor = dcp.read(str(saved), files).tensor("matrix")
    assert isinstance(tensor, Tensor)
    assert (tensor.name, tensor.files) == ("matrix", [str(saved / "__0_0.distcp")])


def test_what_repeats_another_tensor_is_written_once() -> None:
    once = zeros("float32", (100, 100))
    files = dcp.outputs([Entry.whole("embedding", once), Entry.whole("output", once)], {})
    assert files[0].size_bytes < 2 * once.size_bytes
