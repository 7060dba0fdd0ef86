"""Parquet files: a row is a document, a column of strings or of lists of strings is a key.

Rows are read about 1 MiB at a time and the pages of a column as they are needed, so that a row group of gigabytes needs no more
memory than a small one. A null is a bad row, as null is in JSON; a file without the column is an error.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, ClassVar

import numpy as np
import numpy.typing as npt

from lt_preprocess.readers import chunks, json_line, utf8
from lt_preprocess.readers.batch import BadLine, Batch, ChunkLines, Column
from lt_preprocess.readers.chunks import Chunk, Position
from lt_preprocess.tokenizers.base import PADDING_BYTES, Texts
from lt_shared.console import BadData, Unavailable
from lt_shared.document_origins.origins import Kind

MAGIC = b"PAR1"


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise Unavailable("reading Parquet needs pyarrow", "pip install 'lt-preprocess[parquet]'") from None
    return pyarrow


@dataclasses.dataclass(frozen=True)
class RowsChunk(Chunk):
    """Rows of a file from number `first_row` (from 0) on; one Arrow array per key."""

    first_row: int
    arrays: list[Any]

    kind: ClassVar[Kind] = "row"

    def batch(self, json_keys: tuple[str, ...]) -> Batch:
        reasons: dict[int, str] = {}
        columns = []
        for key, array in zip(json_keys, self.arrays, strict=True):
            texts, per_row = _flat(array)
            for row, reason in _unusable(array, key, texts, per_row):
                reasons.setdefault(row, reason)
            columns.append((texts, per_row))
        if reasons:
            good = np.ones(len(self.arrays[0]), bool)
            good[list(reasons)] = False
            columns = [_flat(array.filter(_pyarrow().array(good))) for array in self.arrays]
        bad_rows = [self._bad_row(row, reasons[row], json_keys) for row in sorted(reasons)]
        lines = ChunkLines(self.first_row, len(self.arrays[0]), sorted(reasons))
        return Batch([_column(texts, per_row) for texts, per_row in columns], bad_rows, lines)

    def _bad_row(self, row: int, reason: str, json_keys: tuple[str, ...]) -> BadLine:
        values = {key: _as_json(array[row]) for key, array in zip(json_keys, self.arrays, strict=True)}
        number = self.first_row + row
        return BadLine(self.source, number, reason, json.dumps(values).encode(), lambda: number + 1, is_row=True)


def _as_json(scalar: Any) -> Any:
    """The value with bytes that are no UTF-8 as lone surrogates, which `errors="surrogateescape"` turns back."""
    if not scalar.is_valid:
        return None
    if hasattr(scalar, "values"):
        return [_as_json(item) for item in scalar.values]
    return scalar.as_buffer().to_pybytes().decode(errors="surrogateescape")


def _flat(array: Any) -> tuple[Texts, npt.NDArray[np.int64]]:
    """All texts of an array, empty and null ones too, and the number of texts in each row."""
    if not _is_list(array.type):
        return _texts(array), np.ones(len(array), np.int64)
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return _texts(array.flatten()), lengths


def _texts(array: Any) -> Texts:
    """Copies the texts of an Arrow array of large strings; a null has no bytes."""
    _, offset_buffer, data_buffer = array.buffers()
    if len(array) == 0:
        return Texts.of([])
    offsets = np.frombuffer(offset_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    data = np.zeros(size + PADDING_BYTES, np.uint8)
    if size:
        data[:size] = np.frombuffer(data_buffer, np.uint8, size, first)
    return Texts(data, offsets - first)


def _is_list(kind: Any) -> bool:
    types = _pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _unusable(array: Any, key: str, texts: Texts, per_row: npt.NDArray[np.int64]) -> Iterator[tuple[int, str]]:
    """The rows that are no document, and why."""
    for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
        yield row, json_line.wrong_type(key, None)
    row_of_text = np.repeat(np.arange(len(per_row)), per_row)
    if _is_list(array.type) and (items := array.flatten()).null_count:
        for text in np.flatnonzero(items.is_null().to_numpy(zero_copy_only=False)).tolist():
            yield int(row_of_text[text]), json_line.wrong_type(key, [])
    for text in utf8.invalid(texts):
        yield int(row_of_text[text]), f"{key!r} is invalid UTF-8"


def _column(texts: Texts, per_row: npt.NDArray[np.int64]) -> Column:
    """Leave empty texts out."""
    is_text = np.diff(texts.offsets) > 0
    if is_text.all():
        return Column(texts, per_row)
    before = np.concatenate([[0], np.cumsum(is_text)])
    ends = np.cumsum(per_row)
    offsets = np.append(texts.offsets[:-1][is_text], texts.offsets[-1])
    return Column(Texts(texts.data, offsets), before[ends] - before[ends - per_row])


def row_chunks(
    source: str, file: str | IO[bytes], json_keys: Sequence[str], start: Position, size_bytes: int, advance: Callable[[int], None]
) -> Iterator[RowsChunk]:
    """The rows from `start` on. Raises BadData for a file that is damaged or has no such column of texts."""
    pyarrow = _pyarrow()
    try:
        with pyarrow.parquet.ParquetFile(file, buffer_size=chunks.CHUNK_BYTES, pre_buffer=False) as rows:
            yield from _row_chunks(source, rows, json_keys, start, size_bytes, advance)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadData(f"{source}: damaged Parquet: {error}") from None


def _row_chunks(
    source: str, file: Any, json_keys: Sequence[str], start: Position, size_bytes: int, advance: Callable[[int], None]
) -> Iterator[RowsChunk]:
    types = [_text_type(source, file.schema_arrow, key) for key in json_keys]
    advanced = functools.partial(_share, size_bytes, file.metadata.num_rows)
    first_row = 0
    for group in range(file.num_row_groups):
        group_rows = file.metadata.row_group(group).num_rows
        if first_row + group_rows <= start.offset:
            advance(advanced(first_row + group_rows) - advanced(first_row))
            first_row += group_rows
            continue
        rows_at_once = _rows_at_once(file.metadata.row_group(group), json_keys)
        for batch in file.iter_batches(rows_at_once, [group], list(json_keys), use_threads=False):
            skip = min(max(start.offset - first_row, 0), len(batch))
            next_row = first_row + len(batch)
            if skip < len(batch):
                arrays = [batch.column(key).slice(skip).cast(kind) for key, kind in zip(json_keys, types, strict=True)]
                yield RowsChunk(source, Position(start.input, next_row, next_row + 1), first_row + skip, arrays)
            advance(advanced(next_row) - advanced(first_row))
            first_row = next_row


def _share(size_bytes: int, rows: int, row: int) -> int:
    return size_bytes * row // max(rows, 1)


def _rows_at_once(group: Any, json_keys: Sequence[str]) -> int:
    """Rows of a row group that hold about CHUNK_BYTES of the wanted columns."""
    columns = (group.column(number) for number in range(group.num_columns))
    size = sum(column.total_uncompressed_size for column in columns if column.path_in_schema.split(".")[0] in json_keys)
    return max(1, int(chunks.CHUNK_BYTES * group.num_rows // max(size, 1)))


def _text_type(source: str, schema: Any, key: str) -> Any:
    """The Arrow type that a column is read as."""
    pyarrow = _pyarrow()
    if key not in schema.names:
        raise BadData(f"{source}: no column {key!r}; there are {', '.join(schema.names)}")
    kind = schema.field(key).type
    text = pyarrow.large_string()
    if _is_text(kind):
        return text
    if _is_list(kind) and _is_text(kind.value_type):
        return pyarrow.large_list(text)
    raise BadData(f"{source}: column {key!r} is of type {kind}, expected strings or lists of strings")


def _is_text(kind: Any) -> bool:
    types = _pyarrow().types
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))
