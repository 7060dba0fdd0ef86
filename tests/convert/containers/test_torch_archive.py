"""Archives of `torch.save`: torch loads what is written here, what torch saves is read here."""

import argparse
import io
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_convert.containers import torch_archive
from lt_convert.containers.pickle_writer import Global, Instance
from lt_convert.tensors import blocks
from lt_convert.tensors.output_files import Payload
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Chunk, Tensor, View, tensor_in_files
from lt_shared.console import BadData

DTYPES = ["float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8"]


def lazy(tensor: torch.Tensor, path: Path) -> Tensor:
    """The same tensor as a view of a file, which is appended to."""
    with path.open("ab") as file:
        position = file.tell()
        file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    shape = tuple(tensor.shape)
    return tensor_in_files(
        "t", str(tensor.dtype).removeprefix("torch."), shape, [((0,) * len(shape), shape, str(path), position)]
    )


def content(segments: Iterable[bytes | Payload]) -> bytes:
    with Files() as files:
        return b"".join(
            segment if isinstance(segment, bytes) else blocks.read(segment.tensor, files).tobytes() for segment in segments
        )


@settings(max_examples=40)
@given(st.lists(st.integers(1, 5), max_size=3), st.sampled_from(DTYPES), st.text(max_size=50))
def test_torch_loads_what_is_written(tmp_path_factory: pytest.TempPathFactory, shape: list[int], dtype: str, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "values"
    tensor = torch.randint(0, 100, shape).to(getattr(torch, dtype))
    value = {"a": Payload("a", lazy(tensor, path)), "b": [1, text, (Payload("b", lazy(tensor + 1, path)), None)]}
    for mmap in (False, True):
        place = tmp_path_factory.getbasetemp() / "archive.pt"
        place.write_bytes(content(torch_archive.archive(value)))
        loaded = torch.load(place, weights_only=True, mmap=mmap)
        assert torch.equal(loaded["a"], tensor)
        assert loaded["b"][:2] == [1, text]
        assert torch.equal(loaded["b"][2][0], tensor + 1)
    with zipfile.ZipFile(place) as archive:
        infos = {info.filename: info for info in archive.infolist()}
        assert [infos[f"archive/data/{number}"].file_size for number in range(2)] == [tensor.nbytes] * 2


def test_values_are_aligned(tmp_path: Path) -> None:
    head, payload, _ = torch_archive.archive(Payload("t", lazy(torch.ones(3), tmp_path / "values")))
    assert len(head) % torch_archive.ALIGNMENT == 0
    assert isinstance(payload, Payload)


def test_objects_of_other_classes(tmp_path: Path) -> None:
    value = {"args": Instance(Global("argparse", "Namespace"), {"dtype": Global("torch", "bfloat16"), "n": 1})}
    (tmp_path / "common.pt").write_bytes(content(torch_archive.archive(value)))
    with torch.serialization.safe_globals([argparse.Namespace]):
        loaded = torch.load(tmp_path / "common.pt", weights_only=True)
    assert loaded == {"args": argparse.Namespace(dtype=torch.bfloat16, n=1)}


def test_archives_over_4_gib(tmp_path: Path) -> None:
    """The values are a hole in the file; torch maps it and finds the last of them."""
    size = (1 << 32) + 10
    tensor = Tensor("t", "uint8", (size,), (Chunk((range(size),), View("gone", 0, (size,), (1,))),), "uint8")
    small = Tensor("s", "uint8", (3,), (Chunk((range(3),), View("gone", 0, (3,), (1,))),), "uint8")
    head, _, middle, _, tail = torch_archive.archive({"t": Payload("t", tensor), "s": Payload("s", small)})
    with (tmp_path / "large.pt").open("wb") as file:
        file.write(head)
        file.seek(size - 1, os.SEEK_CUR)
        file.write(b"\7" + middle + b"\1\2\3" + tail)
    loaded = torch.load(tmp_path / "large.pt", weights_only=True, mmap=True)
    assert loaded["t"].shape == (size,)
    assert loaded["t"][-2:].tolist() == [0, 7]
    assert loaded["s"].tolist() == [1, 2, 3]
    with Files() as files:
        record, locate = torch_archive.read(str(tmp_path / "large.pt"), 0, (tmp_path / "large.pt").stat().st_size, files, "large")
        assert files.read(str(tmp_path / "large.pt"), locate(record["t"]).view.offset_bytes + size - 2, 2) == b"\0\7"
        assert files.read(str(tmp_path / "large.pt"), locate(record["s"]).view.offset_bytes, 3) == b"\1\2\3"


def read(path: Path, offset: int = 0, length: int | None = None) -> tuple[Any, Any]:
    with Files() as files:
        return torch_archive.read(str(path), offset, path.stat().st_size - offset if length is None else length, files, "it")


def values(found: torch_archive.StoredValues) -> numpy.ndarray:
    view = found.view
    tensor = Tensor("t", found.dtype, view.shape, (Chunk(tuple(map(range, view.shape)), view),), found.dtype)
    with Files() as files:
        return blocks.read(tensor, files)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.sampled_from(DTYPES), st.data())
def test_what_torch_saves_is_read(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], dtype: str, data: st.DataObject
) -> None:
    whole = torch.randint(0, 100, shape).to(getattr(torch, dtype))
    order = data.draw(st.permutations(range(len(shape))))
    view = whole.permute(order)[data.draw(st.integers(0, shape[order[0]] - 1)) :]
    path = tmp_path_factory.getbasetemp() / "saved.pt"
    buffer = io.BytesIO()
    torch.save({"view": view, "step": 3}, buffer)
    path.write_bytes(b"before" + buffer.getvalue() + b"after")
    record, locate = read(path, 6, len(buffer.getvalue()))
    assert record["step"] == 3
    found = locate(record["view"])
    assert found.dtype == dtype
    assert (
        values(found).tobytes()
        == view.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()
    )


def test_places_outside_of_the_file(tmp_path: Path) -> None:
    torch.save(1, tmp_path / "a.pt")
    for offset, length in ((0, 10_000), (-1, 10), (1 << 62, 10), (0, -1)):
        with pytest.raises(BadData, match="lies beyond the end of the file"):
            read(tmp_path / "a.pt", offset, length)
