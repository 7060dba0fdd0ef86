"""Rows of Arrow arrays: what Parquet and Arrow files have in common.

A column of strings or of lists of strings is a key, a field of a struct a path of keys. A null is a bad row, as null is in JSON;
a file without the column is an error. Chunks have about 1 MiB of text; decoded rows are cut or joined to this size.
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lt_preprocess.readers import chunks, json_line, text_keys, utf8
from lt_preprocess.readers.batch import BadLine, Batch, ChunkLines, Column
from lt_preprocess.readers.chunks import MARGIN_BYTES, Position
from lt_preprocess.readers.records import RowChunk
from lt_preprocess.texts import PADDING_BYTES, Lengths, Texts
from lt_shared.console import Unavailable

_ROW_BYTES = 16
"""Added to the text of a row, as its JSON line adds bytes: a chunk of short rows has no more rows than a chunk of lines."""


def load_pyarrow() -> Any:
    # pyarrow's mimalloc keeps the memory of large pages that were freed. A row of 150 MB: 1,155 MiB at most, with malloc 930.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise Unavailable("reading Parquet and Arrow needs pyarrow", "pip install 'lt-preprocess[parquet]'") from None
    return pyarrow


@dataclasses.dataclass(frozen=True)
class RowsChunk(RowChunk):
    """Rows as one chunked Arrow array per key."""

    arrays: list[Any]

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
            columns = [_flat(array.filter(load_pyarrow().array(good))) for array in self.arrays]
        bad_rows = [self._bad_row(row, reasons[row], json_keys) for row in sorted(reasons)]
        lines = ChunkLines(self.first_row, len(self.arrays[0]), sorted(reasons))
        return Batch([_column(texts, per_row) for texts, per_row in columns], bad_rows, lines)

    def _bad_row(self, row: int, reason: str, json_keys: tuple[str, ...]) -> BadLine:
        values = {text_keys.name_of(key): _as_json(array[row]) for key, array in zip(json_keys, self.arrays, strict=True)}
        number = self.first_row + row
        return BadLine(self.source, number, reason, json.dumps(values).encode(), lambda: number + 1, is_row=True)


def _as_json(scalar: Any) -> Any:
    """The value with bytes that are no UTF-8 as lone surrogates, which `errors="surrogateescape"` turns back."""
    if not scalar.is_valid:
        return None
    if hasattr(scalar, "values"):
        return [_as_json(item) for item in scalar.values]
    return scalar.as_buffer().to_pybytes().decode(errors="surrogateescape")


def _flat(array: Any) -> tuple[Texts, Lengths]:
    """All texts of a chunked array, empty and null ones too, and the number of texts in each row."""
    if not is_list(array.type):
        return _texts(array.chunks), np.ones(len(array), np.int64)
    lengths = np.concatenate([np.zeros(0, np.int64), *map(_list_lengths, array.chunks)])
    return _texts([part.flatten() for part in array.chunks]), lengths


def _list_lengths(array: Any) -> Lengths:
    """Return the number of items of each list; a null has none, whatever its offsets say."""
    lengths = np.diff(_offsets(array))
    lengths[_nulls(array)] = 0
    return lengths


def _nulls(array: Any) -> npt.NDArray[np.int64]:
    """Return the numbers of the rows that are null. pyarrow's own conversion imports pandas, 0.2 s and 40 MB."""
    if array.null_count == 0:
        return np.zeros(0, np.int64)
    if load_pyarrow().types.is_null(array.type):
        return np.arange(len(array))
    [validity, *_] = array.buffers()
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
    return np.flatnonzero(bits[array.offset :][: len(array)] == 0)


def _nulls_of_chunks(arrays: list[Any]) -> list[int]:
    """Return the numbers of the null rows among all rows of arrays that follow one another."""
    firsts = itertools.accumulate(map(len, arrays), initial=0)
    return [first + int(row) for first, array in zip(firsts, arrays, strict=False) for row in _nulls(array)]


def _texts(arrays: list[Any]) -> Texts:
    """Copy the texts of arrays of strings. A null has no bytes. MARGIN_BYTES before the first text may be read."""
    of_arrays = [_offsets(array) for array in arrays]
    sizes = [int(offsets[-1] - offsets[0]) for offsets in of_arrays]
    # The joined offsets: each array's own, moved to the end of the texts before.
    ends = np.cumsum([0, *sizes]).tolist()
    moved = [offsets[1:] - offsets[0] + end for offsets, end in zip(of_arrays, ends, strict=False)]
    buffer = np.empty(MARGIN_BYTES + ends[-1] + PADDING_BYTES, np.uint8)
    buffer[:MARGIN_BYTES] = buffer[MARGIN_BYTES + ends[-1] :] = 0
    data = buffer[MARGIN_BYTES:]
    for array, offsets, size, begin in zip(arrays, of_arrays, sizes, ends, strict=False):
        if size:
            data[begin : begin + size] = np.frombuffer(array.buffers()[2], np.uint8, size, int(offsets[0]))
    return Texts(data, np.concatenate([np.zeros(1, np.int64), *moved]))


def is_list(kind: Any) -> bool:
    types = load_pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _unusable(array: Any, key: str, texts: Texts, per_row: Lengths) -> Iterator[tuple[int, str]]:
    """The rows that are no document, and why."""
    if not text_keys.is_optional(key):
        for row in _nulls_of_chunks(array.chunks):
            yield row, json_line.wrong_type(key, None)
    row_of_text = np.repeat(np.arange(len(per_row)), per_row)
    if is_list(array.type):
        for text in _nulls_of_chunks([part.flatten() for part in array.chunks]):
            yield int(row_of_text[text]), json_line.wrong_type(key, [])
    for text in utf8.invalid(texts, has_margin=True):
        yield int(row_of_text[text]), f"{text_keys.name_of(key)!r} is invalid UTF-8"


def _column(texts: Texts, per_row: Lengths) -> Column:
    """Leave empty texts out."""
    is_text = np.diff(texts.offsets) > 0
    if is_text.all():
        return Column(texts, per_row)
    before = np.concatenate([[0], np.cumsum(is_text)])
    ends = np.cumsum(per_row)
    offsets = np.append(texts.offsets[:-1][is_text], texts.offsets[-1])
    return Column(Texts(texts.data, offsets), before[ends] - before[ends - per_row])


class WaitingRows:
    """Joins batches of rows to chunks, and cuts large batches."""

    def __init__(self, source: str, input_number: int, json_keys: Sequence[str], types: Sequence[Any]):
        self._source = source
        self._input_number = input_number
        self._json_keys = json_keys
        self._types = types
        self._batches: list[Any] = []
        self._first_row = self._rows = self._size_bytes = 0

    def add(self, batch: Any, row_bytes: Lengths, first_row: int) -> Iterator[RowsChunk]:
        """Take a batch whose rows have so many bytes of text, and yield the chunks that are full."""
        row_bytes = row_bytes + _ROW_BYTES
        for first, last in _cuts(row_bytes):
            size_bytes = int(row_bytes[first:last].sum())
            if self._rows and self._size_bytes + size_bytes > chunks.CHUNK_BYTES:
                yield self._chunk()
            if not self._batches:
                self._first_row = first_row + first
            self._batches.append(batch.slice(first, last - first))
            self._rows += last - first
            self._size_bytes += size_bytes

    def last(self) -> Iterator[RowsChunk]:
        """Yield the remaining rows."""
        if self._rows:
            yield self._chunk()

    def _chunk(self) -> RowsChunk:
        chunked = load_pyarrow().chunked_array
        arrays = [
            chunked([_as_type(batch.column(key), kind) for batch in self._batches], kind)
            for key, kind in zip(self._json_keys, self._types, strict=True)
        ]
        first_row, next_row = self._first_row, self._first_row + self._rows
        self._batches, self._rows, self._size_bytes = [], 0, 0
        return RowsChunk(self._source, Position(self._input_number, next_row, next_row + 1), first_row, arrays)


def _as_type(array: Any, kind: Any) -> Any:
    return array if array.type == kind else array.cast(kind)


def _cuts(row_bytes: Lengths) -> Iterator[tuple[int, int]]:
    """Where to cut rows so that the pieces have about CHUNK_BYTES, or one row."""
    cuts = np.flatnonzero(np.diff(np.cumsum(row_bytes) // chunks.CHUNK_BYTES, prepend=0)) + 1
    bounds = np.unique(np.concatenate([[0], cuts, [len(row_bytes)]]))
    return itertools.pairwise(bounds.tolist())


def text_bytes_of_rows(batch: Any) -> Lengths:
    """The bytes of text that each row has when it is decoded."""
    sizes = np.zeros(len(batch), np.int64)
    for array in batch.columns:
        sizes += _sizes(array)
    return sizes


def _sizes(array: Any) -> Lengths:
    pyarrow = load_pyarrow()
    if is_list(array.type):
        lengths = _list_lengths(array)
        before = np.concatenate([[0], np.cumsum(_sizes(array.flatten()))])
        ends = np.cumsum(lengths)
        sums: Lengths = before[ends] - before[ends - lengths]
        return sums
    if pyarrow.types.is_dictionary(array.type):
        lengths = _sizes(array.dictionary)
        return lengths[dictionary_indices(array)] if len(lengths) else np.zeros(len(array), np.int64)
    if pyarrow.types.is_null(array.type):
        return np.zeros(len(array), np.int64)
    if pyarrow.types.is_string_view(array.type):
        array = array.cast(pyarrow.large_string())
    return np.diff(_offsets(array))


def dictionary_indices(array: Any) -> Lengths:
    """Return the index of each row in the dictionary, 0 for a null."""
    indices = array.indices
    if load_pyarrow().types.is_null(indices.type):
        return np.zeros(len(array), np.int64)
    stored = np.frombuffer(indices.buffers()[1], np.dtype(str(indices.type)))[indices.offset :][: len(indices)].astype(np.int64)
    stored[_nulls(indices)] = 0
    return stored


def _offsets(array: Any) -> Lengths:
    """Return where each text, or list, of an array begins in its buffer, and where the last ends. A null text has no bytes."""
    offset_buffer = array.buffers()[1]
    if len(array) == 0 or offset_buffer is None:
        return np.zeros(len(array) + 1, np.int64)
    types = load_pyarrow().types
    dtype = np.int64 if types.is_large_string(array.type) or types.is_large_list(array.type) else np.int32
    return np.frombuffer(offset_buffer, dtype)[array.offset :][: len(array) + 1].astype(np.int64)
