"""safetensors files against the library that defines them, and damaged ones."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file

from lt_convert import safetensors_files
from lt_convert.tensors import OpenFiles
from lt_shared.console import BadData

TENSORS = {
    "b": torch.randn(7, 3),
    "a": torch.randn(5).to(torch.bfloat16),
    "c": torch.randn(2, 3, 4).to(torch.float16),
}


def test_files_of_the_library_are_read(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors", {"format": "pt"})
    with OpenFiles() as files:
        found = safetensors_files.read_model(tmp_path, files)
        for name, tensor in TENSORS.items():
            assert (found[name].dtype, found[name].shape) == (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            bits = found[name].read_rows(1, tensor.shape[0])
            assert bits.tobytes() == tensor[1:].contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("shard_bytes", [1, 100, 10**9])
def test_the_library_reads_what_is_written(tmp_path: Path, shard_bytes: int) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    written = 0

    def advance(size: int) -> None:
        nonlocal written
        written += size

    (tmp_path / "out").mkdir()
    with OpenFiles() as files:
        tensors = safetensors_files.read_model(tmp_path, files)
        safetensors_files.write_model(tmp_path / "out", tensors, advance, shard_bytes)
        again = safetensors_files.read_model(tmp_path / "out", files)
        assert {name: tensor.shape for name, tensor in again.items()} == {name: tensor.shape for name, tensor in tensors.items()}
    found: dict[str, torch.Tensor] = {}
    for path in (tmp_path / "out").glob("*.safetensors"):
        found |= load_file(path)
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
    assert written == sum(tensor.nbytes for tensor in TENSORS.values())
    assert (tmp_path / "out" / "model.safetensors.index.json").exists() == (shard_bytes < 10**9)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == {1: 3, 100: 2, 10**9: 1}[shard_bytes]


def header(content: object) -> bytes:
    encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
    return len(encoded).to_bytes(8, "little") + encoded


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated"),
        (b"\xff" * 8, "cut off inside its header"),
        (header(b"junk"), "malformed"),
        (header([1]), "malformed"),
        (header({"t": {"dtype": "F32"}}), "malformed"),
        (header({"t": ENTRY}), r"bytes, its header says"),
        (header({"t": ENTRY}) + bytes(5), r"bytes, its header says"),
        (header({"t": ENTRY | {"shape": [2]}}) + bytes(4), "which its shape"),
        (header({"t": ENTRY | {"dtype": "I64", "data_offsets": [0, 8]}}) + bytes(8), "stored as I64"),
        (header({"t": ENTRY | {"data_offsets": [-4, 0]}}) + bytes(4), "which its shape"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with OpenFiles() as files, pytest.raises(BadData, match=message):
        safetensors_files.read_model(tmp_path, files)


def test_damaged_shards_are_refused(hf_checkpoints: dict[str, Any], tmp_path: Path) -> None:
    def refuse(message: str) -> None:
        with OpenFiles() as files, pytest.raises(BadData, match=message):
            safetensors_files.read_model(place, files)

    place = Path(shutil.copytree(hf_checkpoints["sharded"].directory, tmp_path / "sharded"))
    shards = sorted(place.glob("*.safetensors"))
    shutil.copy(shards[0], place / "kept")
    shards[0].write_bytes(shards[0].read_bytes()[:-1])
    refuse("its header says")
    shards[0].unlink()
    refuse("missing")
    shutil.copy(shards[1], shards[0])
    refuse("in another shard too")
    save_file({"other": torch.zeros(1)}, shards[0])
    refuse("which the index promises")
    index = place / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    refuse("outside the directory")
    index.write_text("{}")
    refuse("not an index")
    shutil.rmtree(place)
    place.mkdir()
    refuse("has neither")


def test_blocks_are_contiguous_in_any_layout(tmp_path: Path) -> None:
    class Turned:
        dtype, shape = "float32", (3, 2)

        def read_rows(self, start: int, stop: int) -> Any:
            return numpy.arange(6, dtype=numpy.uint32).reshape(2, 3).T[start:stop]

    safetensors_files.write_file(tmp_path / "f.safetensors", {"t": Turned()}, lambda size: None)
    assert load_file(tmp_path / "f.safetensors")["t"].view(torch.int32).tolist() == [[0, 3], [1, 4], [2, 5]]
