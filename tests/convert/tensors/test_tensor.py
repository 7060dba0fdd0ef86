"""Lazy tensors: every chain of operations reads as NumPy computes it, and chunks that do not cover are refused."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lt_convert.tensors import blocks
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor, assemble, concatenate, intersection, tensor_in_files, zeros
from lt_shared.console import BadData

SETTINGS = settings(max_examples=80)
VALUES = 1 << 12

Values = NDArray[numpy.uint32]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of uint32 values, each its own index."""
    path = tmp_path_factory.mktemp("numbers") / "numbers"
    path.write_bytes(numpy.arange(VALUES, dtype=numpy.uint32).tobytes())
    return str(path)


@dataclasses.dataclass
class Pair:
    """A lazy tensor and what it has to read as."""

    lazy: Tensor
    values: Values


def cuts(draw: st.DrawFn, size: int) -> list[tuple[int, int]]:
    edges = sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=2))})
    return list(itertools.pairwise(edges))


@st.composite
def grids(draw: st.DrawFn, axes: int = 3) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """A shape and the boxes (offsets, sizes) of a grid over it, in any order."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=axes)))
    boxes = [
        (tuple(start for start, _ in box), tuple(stop - start for start, stop in box))
        for box in itertools.product(*(cuts(draw, size) for size in shape))
    ]
    return shape, draw(st.permutations(boxes))


def in_chunks(file: str, shape: tuple[int, ...], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> Pair:
    """The chunks lie one after the other in the file of numbers, with a gap of three values before each."""
    values = numpy.full(shape, -1, dtype=numpy.int64).astype(numpy.uint32)
    chunks, position = [], 0
    for offsets, sizes in boxes:
        position += 3
        size = int(numpy.prod(sizes))
        box = tuple(slice(offset, offset + length) for offset, length in zip(offsets, sizes, strict=True))
        values[box] = numpy.arange(position, position + size).reshape(sizes)
        chunks.append((offsets, sizes, file, 4 * position))
        position += size
    assert position <= VALUES
    return Pair(tensor_in_files("t", "float32", shape, chunks), values)


def operations(draw: st.DrawFn, pair: Pair) -> Iterator[Pair]:
    """What every operation makes of the pair; the drawn numbers choose their arguments."""
    lazy, values = pair.lazy, pair.values
    axis = draw(st.integers(0, values.ndim - 1))
    size = values.shape[axis]
    begin = draw(st.integers(0, size - 1))
    indices = range(begin, draw(st.integers(begin + 1, size)), draw(st.integers(1, 3)))
    yield Pair(lazy.take(axis, indices), values.take(indices, axis))
    order = draw(st.permutations(range(values.ndim)))
    yield Pair(lazy.permuted(order), values.transpose(order))
    yield Pair(lazy.transposed(), values.T)
    yield Pair(lazy.expanded(2).squeezed(1), values[None])
    if values.ndim > 1:
        yield Pair(lazy.at(begin % values.shape[0]), values[begin % values.shape[0]])
    yield Pair(
        concatenate("t", axis, [lazy, lazy.take(axis, indices)]), numpy.concatenate([values, values.take(indices, axis)], axis)
    )
    woven = numpy.empty((2 * values.shape[0], *values.shape[1:]), numpy.uint32)
    woven[0::2], woven[1::2] = values, 0
    rest = [range(length) for length in values.shape[1:]]
    rows = range(2 * values.shape[0])
    pieces = [((rows[0::2], *rest), lazy), ((rows[1::2], *rest), zeros("float32", values.shape))]
    yield Pair(assemble("t", woven.shape, pieces), woven)


@SETTINGS
@given(data=st.data())
def test_any_chain_of_operations_reads_as_in_numpy(numbers: str, data: st.DataObject) -> None:
    pair = in_chunks(numbers, *data.draw(grids()))
    for _ in range(data.draw(st.integers(0, 4))):
        pair = data.draw(st.sampled_from(list(operations(data.draw, pair))))
        if pair.values.size > 3000 or pair.values.ndim > 5:
            break
    assert pair.lazy.shape == pair.values.shape
    pair.lazy.check_cover()
    with Files() as files:
        assert numpy.array_equal(blocks.read(pair.lazy, files), pair.values)


@pytest.mark.parametrize(
    "boxes",
    [
        [((0, 0), (2, 4))],
        [((0, 0), (4, 4)), ((0, 0), (4, 4))],
        [((0, 0), (3, 4)), ((2, 0), (1, 4))],
        [((0, 0), (2, 4)), ((2, 1), (2, 4))],
        [((0, 0), (2, 4)), ((1, 2), (2, 4))],
        [],
    ],
)
def test_chunks_that_do_not_cover_are_refused(boxes: list[tuple[tuple[int, int], tuple[int, int]]]) -> None:
    with pytest.raises(BadData, match=r"do not cover|outside its shape"):
        tensor_in_files("t", "float32", (4, 4), [(*box, "f", 0) for box in boxes])


@SETTINGS
@given(data=st.data())
def test_one_chunk_twice_or_one_missing_is_refused(data: st.DataObject) -> None:
    shape, boxes = data.draw(grids(2))
    index = data.draw(st.integers(0, len(boxes) - 1))
    for wrong in (boxes[:index] + boxes[index + 1 :], [*boxes, boxes[index]]):
        with pytest.raises(BadData, match="do not cover"):
            tensor_in_files("t", "float32", shape, [(*box, "f", 0) for box in wrong])


def ranges(draw: st.DrawFn) -> range:
    start, step = draw(st.integers(0, 12)), draw(st.integers(1, 6))
    return range(start, start + step * draw(st.integers(0, 8)), step)


@SETTINGS
@given(data=st.data())
def test_what_two_ranges_have_in_common(data: st.DataObject) -> None:
    one, other = ranges(data.draw), ranges(data.draw)
    assert list(intersection(one, other)) == sorted(set(one) & set(other))


def test_tensors_of_several_dtypes_are_not_joined() -> None:
    pieces = [((range(2),), zeros("float32", (2,))), ((range(2, 4),), zeros("bfloat16", (2,)))]
    with pytest.raises(BadData, match="t: its pieces are stored as bfloat16 and float32"):
        assemble("t", (4,), pieces)


def test_size_is_that_of_the_dtype_that_is_read() -> None:
    assert zeros("float32", (3, 5)).size_bytes == 60
    assert zeros("float32", (3, 5)).cast("bfloat16").size_bytes == 30
    assert zeros("float32", ()).size_bytes == 4


def test_files_of_a_tensor() -> None:
    tensor = tensor_in_files("t", "uint8", (2, 1), [((0, 0), (1, 1), "a", 0), ((1, 0), (1, 1), "b", 0)])
    assert tensor.files == ["a", "b"]
    assert tensor.take(0, range(1)).files == ["a"]
    assert Path(tensor.files[0]).name == "a"


def test_zeros_join_tensors_that_are_cast() -> None:
    read = tensor_in_files("t", "float32", (2,), [((0,), (2,), "f", 0)]).cast("bfloat16")
    joined = assemble("t", (4,), [((range(2),), read), ((range(2, 4),), zeros("bfloat16", (2,)))])
    assert (joined.dtype, joined.stored_dtype) == ("bfloat16", "float32")
