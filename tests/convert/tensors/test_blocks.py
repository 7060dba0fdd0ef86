"""Reading tensors in blocks: any rows, few reads, whatever lies between the values."""

from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_convert.tensors import blocks
from lt_convert.tensors.blocks import TensorReader
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Chunk, Tensor, View, assemble, tensor_in_files, zeros
from lt_shared.console import BadData

ROWS, COLUMNS = 60, 50


class Counting(Files):
    """Notes the length of every read."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        self.lengths.append(len(buffer))
        super().read_into(path, offset, buffer)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    path = tmp_path_factory.mktemp("matrix") / "matrix"
    path.write_bytes(bytes(8) + whole().tobytes())
    return tensor_in_files("m", "float32", (ROWS, COLUMNS), [((0, 0), (ROWS, COLUMNS), str(path), 8)])


def whole() -> numpy.ndarray:
    return numpy.arange(ROWS * COLUMNS, dtype=numpy.uint32).reshape(ROWS, COLUMNS)


@pytest.fixture
def files() -> Iterator[Counting]:
    with Counting() as files:
        yield files


def test_row_blocks_cover_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 24)
    assert list(blocks.row_blocks(zeros("bfloat16", (10, 3)))) == [(0, 4), (4, 8), (8, 10)]
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1)
    assert list(blocks.row_blocks(zeros("bfloat16", (3, 3)))) == [(0, 1), (1, 2), (2, 3)]
    assert list(blocks.row_blocks(zeros("bfloat16", (0, 3)))) == []


def test_flat_leaves_at_least_one_axis() -> None:
    assert [blocks.flat(zeros("uint8", shape)).shape for shape in [(), (1,), (1, 1, 5), (1, 1, 1), (2, 1)]] == [
        (1,), (1,), (5,), (1,), (2, 1),
    ]  # fmt: skip


def test_rows_in_one_piece_are_one_read(matrix: Tensor, files: Counting) -> None:
    found = TensorReader(files).rows(matrix, 10, 40)
    assert numpy.array_equal(found, whole()[10:40])
    assert files.lengths == [30 * COLUMNS * 4]


def test_interleaved_rows_are_one_read(matrix: Tensor, files: Counting) -> None:
    halves = [((range(half, ROWS, 2), range(COLUMNS)), matrix.take(0, range(half * 30, half * 30 + 30))) for half in range(2)]
    woven = assemble("w", matrix.shape, halves)
    found = TensorReader(files).rows(woven, 0, ROWS).copy()
    assert numpy.array_equal(found[0::2], whole()[:30])
    assert numpy.array_equal(found[1::2], whole()[30:])
    assert len(files.lengths) <= 2


@pytest.mark.parametrize("span_bytes", [16, 300, 1 << 20])
def test_a_transposed_tensor_does_not_read_more_than_a_span(
    span_bytes: int, matrix: Tensor, files: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "SPAN_BYTES", span_bytes)
    monkeypatch.setattr(blocks, "TRANSPOSED_BLOCK_BYTES", 5 * ROWS * 4)
    transposed = matrix.transposed()
    reader = TensorReader(files)
    found = [reader.rows(transposed, start, stop).copy() for start, stop in blocks.row_blocks(transposed)]
    assert len(found) == COLUMNS // 5
    assert numpy.array_equal(numpy.concatenate(found), whole().T)
    assert max(files.lengths) <= span_bytes


@given(data=st.data())
def test_any_rows_of_any_view(data: st.DataObject, matrix: Tensor) -> None:
    rows = range(data.draw(st.integers(0, 20)), data.draw(st.integers(21, ROWS)), data.draw(st.integers(1, 4)))
    columns = range(data.draw(st.integers(0, 20)), data.draw(st.integers(21, COLUMNS)), data.draw(st.integers(1, 4)))
    lazy, expected = matrix.take(0, rows).take(1, columns), whole()[rows.start : rows.stop : rows.step]
    expected = expected[:, columns.start : columns.stop : columns.step]
    if data.draw(st.booleans()):
        lazy, expected = lazy.transposed(), expected.T
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    with Files() as files:
        assert numpy.array_equal(TensorReader(files).rows(lazy, start, stop), expected[start:stop])


def test_chunks_without_a_view_are_zeros(matrix: Tensor, files: Counting) -> None:
    reader = TensorReader(files)
    reader.rows(matrix, 0, ROWS)
    padded = assemble("p", (4, COLUMNS), [((range(2), range(COLUMNS)), matrix.take(0, range(2))),
                                          ((range(2, 4), range(COLUMNS)), zeros("float32", (2, COLUMNS)))])  # fmt: skip
    found = reader.rows(padded, 0, 4)
    assert numpy.array_equal(found[:2], whole()[:2])
    assert not found[2:].any()


def test_a_file_that_ends_early_is_bad_data(matrix: Tensor, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(100))
    view = View(str(tmp_path / "short"), 0, matrix.shape, matrix.chunks[0].view.strides_bytes)
    cut = Tensor("m", "float32", matrix.shape, (Chunk(matrix.chunks[0].indices, view),), "float32")
    with Files() as files, pytest.raises(BadData, match="short: ends at 100 bytes"):
        blocks.read(cut, files)


def test_casts_are_applied_to_the_block(matrix: Tensor, files: Counting) -> None:
    found = TensorReader(files).rows(matrix.cast("bfloat16"), 1, 3)
    values = whole()[1:3].view(numpy.float32)
    assert found.dtype == numpy.uint16
    assert numpy.array_equal(found, numpy.zeros_like(values, dtype=numpy.uint16))
