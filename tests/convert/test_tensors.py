"""Lazy tensors: any cut into boxes reads back as the whole, and nothing else passes as one."""

import itertools
import tempfile
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_convert.tensors import CastTensor, Chunk, OpenFiles, StoredTensor, row_blocks
from lt_shared.console import BadData

SETTINGS = settings(max_examples=60)


def cuts(draw: st.DrawFn, size: int) -> list[int]:
    return sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=3))})


@st.composite
def grids(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """A shape and the boxes of a grid over it, in any order."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    boxes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ())]
    for size in shape:
        edges = cuts(draw, size)
        boxes = [
            ((*offsets, start), (*sizes, stop - start)) for offsets, sizes in boxes for start, stop in itertools.pairwise(edges)
        ]
    return shape, draw(st.permutations(boxes))


@SETTINGS
@given(grids(), st.sampled_from(["float32", "bfloat16"]), st.data())
def test_any_grid_of_chunks_reads_as_the_whole(
    grid: tuple[tuple[int, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]], dtype: str, data: st.DataObject
) -> None:
    shape, boxes = grid
    whole = numpy.arange(numpy.prod(shape), dtype=numpy.uint32 if dtype == "float32" else numpy.uint16).reshape(shape)
    with tempfile.NamedTemporaryFile() as file:
        path, chunks = Path(file.name), []
        file.write(b"ab")
        for offsets, sizes in boxes:
            box = tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))
            chunks.append(Chunk(path, file.tell(), offsets, sizes))
            file.write(whole[box].tobytes())
        file.flush()
        with OpenFiles() as files:
            tensor = StoredTensor("t", dtype, shape, chunks, files)
            tensor.check()
            start = data.draw(st.integers(0, shape[0]))
            stop = data.draw(st.integers(start, shape[0]))
            assert numpy.array_equal(tensor.read_rows(start, stop), whole[start:stop])


@pytest.mark.parametrize(
    "boxes",
    [
        [((0, 0), (2, 4))],
        [((0, 0), (4, 4)), ((0, 0), (4, 4))],
        [((0, 0), (3, 4)), ((2, 0), (1, 4))],
        [((0, 0), (2, 4)), ((2, 1), (2, 4))],
        [],
    ],
)
def test_chunks_that_do_not_cover_are_refused(boxes: list[tuple[tuple[int, int], tuple[int, int]]]) -> None:
    with OpenFiles() as files, pytest.raises(BadData, match=r"do not cover|outside its shape"):
        StoredTensor("t", "float32", (4, 4), [Chunk(Path("f"), 0, *box) for box in boxes], files).check()


def test_row_blocks_cover_every_row_once() -> None:
    with OpenFiles() as files:
        tensor = StoredTensor("t", "bfloat16", (10, 3), [], files)
        assert list(row_blocks(tensor, 24)) == [(0, 4), (4, 8), (8, 10)]
        assert list(row_blocks(tensor, 1)) == [(row, row + 1) for row in range(10)]


def test_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    with OpenFiles(limit=2) as files:
        for number in (0, 1, 2, 0, 1, 2):
            path = tmp_path / str(number)
            path.write_bytes(bytes([number]))
            assert files.read(path, 0, 1) == bytes([number])
            assert len(files._descriptors) <= 2


def test_missing_and_truncated_files_are_bad_data(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"1234")
    with OpenFiles() as files:
        with pytest.raises(BadData, match="short: truncated at 4 bytes"):
            files.read(tmp_path / "short", 2, 4)
        with pytest.raises(BadData, match="gone: missing"):
            files.read(tmp_path / "gone", 0, 1)


def test_cast_rounds_to_nearest(tmp_path: Path) -> None:
    values = torch.tensor([[1.0, 1.00390625, -3.14159, float("inf"), 65504.0, 1e-30]])
    (tmp_path / "f").write_bytes(values.numpy().tobytes())
    with OpenFiles() as files:
        source = StoredTensor("t", "float32", (1, 6), [Chunk(tmp_path / "f", 0, (0, 0), (1, 6))], files)
        for dtype in ("bfloat16", "float16"):
            bits = CastTensor("t", source, dtype).read_rows(0, 1)
            assert torch.equal(torch.from_numpy(bits).view(getattr(torch, dtype)), values.to(getattr(torch, dtype)))
