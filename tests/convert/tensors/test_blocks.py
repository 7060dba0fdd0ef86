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
    monkeypatch.setattr(blocks, "MATRIX_BYTES", ROWS * COLUMNS * 4 - 1)
    monkeypatch.setattr(blocks, "SPAN_BYTES", span_bytes)
    monkeypatch.setattr(blocks, "TRANSPOSED_BLOCK_BYTES", 5 * ROWS * 4)
    transposed = matrix.transposed()
    reader = TensorReader(files)
    found = [reader.rows(transposed, start, stop).copy() for start, stop in blocks.row_blocks(transposed)]
    assert len(found) == COLUMNS // 5
    assert numpy.array_equal(numpy.concatenate(found), whole().T)
    assert max(files.lengths) <= span_bytes


def test_a_transposed_matrix_is_read_once(matrix: Tensor, files: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever order its columns take in the result, and with rows of zeros after them."""
    monkeypatch.setattr(blocks, "MATRIX_BYTES", ROWS * COLUMNS * 4)
    monkeypatch.setattr(blocks, "OF_MATRIX_BYTES", 3 * ROWS * 4)
    transposed = matrix.transposed()
    halves = [(range(half, COLUMNS, 2), transposed.take(0, range(half * 25, half * 25 + 25))) for half in (1, 0)]
    rows = [(rows, part) for rows, part in halves] + [(range(COLUMNS, COLUMNS + 4), zeros("float32", (4, ROWS)))]
    woven = assemble("w", (COLUMNS + 4, ROWS), [((rows, range(ROWS)), part) for rows, part in rows])
    reader = TensorReader(files)
    found = numpy.concatenate([reader.rows(woven, start, stop).copy() for start, stop in blocks.row_blocks(woven)])
    expected = numpy.zeros((COLUMNS + 4, ROWS), numpy.uint32)
    expected[1:COLUMNS:2], expected[0:COLUMNS:2] = whole().T[25:], whole().T[:25]
    assert numpy.array_equal(found, expected)
    assert sum(files.lengths) == ROWS * COLUMNS * 4


def test_what_a_reader_holds_is_not_taken_for_another_matrix(matrix: Tensor, files: Counting, tmp_path: Path) -> None:
    """Between two reads of a matrix another one of the same size is read, and rows that go through the same buffer."""
    (tmp_path / "other").write_bytes(bytes(8) + (whole() + 1).tobytes())
    other = tensor_in_files("o", "float32", matrix.shape, [((0, 0), matrix.shape, str(tmp_path / "other"), 8)])
    reader = TensorReader(files)
    for lazy, expected in (
        (matrix.transposed(), whole().T),
        (other.transposed(), whole().T + 1),
        (matrix.transposed(), whole().T),
        (other.take(1, range(0, COLUMNS, 2)), whole()[:, ::2] + 1),
        (matrix.transposed(), whole().T),
    ):
        assert numpy.array_equal(reader.rows(lazy, 3, 20), expected[3:20])


def test_rows_woven_of_two_transposed_matrices(tmp_path: Path, files: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one matrix is not held."""
    monkeypatch.setattr(blocks, "GAP_BYTES", 0)
    (tmp_path / "two").write_bytes(whole().tobytes() + bytes(4) + whole().tobytes())
    size = ROWS * COLUMNS * 4
    two = [tensor_in_files("m", "float32", (ROWS, COLUMNS), [((0, 0), (ROWS, COLUMNS), str(tmp_path / "two"), at)])
           for at in (0, size + 4)]  # fmt: skip
    places = [(range(half, 2 * COLUMNS, 2), range(ROWS)) for half in (0, 1)]
    woven = assemble("w", (2 * COLUMNS, ROWS), [(place, one.transposed()) for place, one in zip(places, two, strict=True)])
    assert numpy.array_equal(TensorReader(files).rows(woven, 0, 2 * COLUMNS), numpy.repeat(whole().T, 2, axis=0))


@pytest.mark.parametrize("shape", [(1, 1), (5, 700), (700, 5), (128, 256), (129, 257), (256, 512), (257, 513), (300, 600)])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "bfloat16", "float32", "int64"])
def test_transposes_of_any_size(shape: tuple[int, int], dtype: str, tmp_path: Path) -> None:
    """Tiles end where the matrix does."""
    item_bytes = blocks.ITEM_BYTES[dtype]
    values = numpy.random.default_rng(0).integers(0, 255, (*shape, item_bytes), numpy.uint8)
    (tmp_path / "m").write_bytes(values.tobytes())
    lazy = tensor_in_files("m", dtype, shape, [((0, 0), shape, str(tmp_path / "m"), 0)]).transposed()
    with Files() as files:
        found = blocks.read(lazy, files)
    assert found.tobytes() == values.transpose(1, 0, 2).tobytes()


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
