"""Arrow IPC, file and stream, as `datasets` keeps its data on disk: rows of columns, read batch by batch.

A batch is held in memory; `datasets` writes 1,000 rows each. pyarrow takes the end of a file for the end of a stream, so the end
mark is looked for, and it believes the offsets in a file, so they are checked before text is read through them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lt_preprocess.readers.arrow_columns import columns_for
from lt_preprocess.readers.arrow_rows import (
    RowsChunk,
    WaitingRows,
    dictionary_indices,
    is_list,
    load_pyarrow,
    text_bytes_of_rows,
)
from lt_preprocess.readers.byte_stream import READ_BYTES, ByteStream
from lt_preprocess.readers.chunks import Position
from lt_shared.console import BadData

FILE_MAGIC, STREAM_MAGIC = b"ARROW1", b"\xff\xff\xff\xff"
_FILE_HEADER_BYTES = 8
_END_MARK = b"\xff\xff\xff\xff\0\0\0\0"
"""A message of no bytes."""

_COPY_AGAIN = "copy the file again, or write it again if its writer was not closed"


class _Watched:
    """A stream for pyarrow that remembers the last bytes it gave away."""

    closed = False

    def __init__(self, content: ByteStream):
        self._content = content
        self._last_bytes = b""

    def read(self, size: int) -> bytearray:
        """pyarrow takes any buffer. One that grows in place needs half the memory of joined pieces."""
        data = bytearray()
        while len(data) < size and (piece := self._content.read(min(size - len(data), READ_BYTES))):
            data += piece
        self._last_bytes = (self._last_bytes + bytes(data[-8:]))[-8:]
        return data

    @property
    def is_at_end_mark(self) -> bool:
        """Whether the last message said that nothing follows."""
        return self._last_bytes == _END_MARK

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Whoever made the content closes its file."""


def row_chunks(
    source: str, content: ByteStream, json_keys: Sequence[str], start: Position, file_end: bytes = FILE_MAGIC
) -> Iterator[RowsChunk]:
    """Yield the rows from `start` on; `file_end` is how a file ends.

    Raises BadData for a file that is damaged, cut off, or has no such column of texts.
    """
    pyarrow = load_pyarrow()
    header = content.read(_FILE_HEADER_BYTES)
    is_file = header.startswith(FILE_MAGIC)
    row = 0
    try:
        watched = _Watched(content if is_file else content.preceded_by(header))
        with pyarrow.ipc.open_stream(pyarrow.PythonFile(watched, mode="r")) as reader:
            columns = columns_for(source, reader.schema, json_keys)
            waiting = WaitingRows(source, start.input, json_keys, columns.types)
            for batch in reader:
                begin, row = row, row + len(batch)
                if row > start.offset:
                    texts = columns.select(batch).slice(max(start.offset - begin, 0))
                    for array in texts.columns:
                        _check(array)
                    yield from waiting.add(texts, text_bytes_of_rows(texts), row - len(texts))
            yield from waiting.last()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise BadData(f"{source}: damaged Arrow after row {row}: {error}", _COPY_AGAIN) from None
    if not watched.is_at_end_mark or (is_file and _last_bytes(content, file_end) != file_end):
        raise BadData(f"{source}: is cut off after row {row}: no end mark", _COPY_AGAIN)


def _last_bytes(content: ByteStream, file_end: bytes) -> bytes:
    """Read on to the end, and return as many bytes of it as `file_end` has."""
    last = b""
    while piece := content.read(READ_BYTES):
        last = (last + piece)[-len(file_end) :]
    return last


def _check(array: Any) -> None:
    """Raise ValueError if offsets or indices of an array lead outside its values."""
    pyarrow = load_pyarrow()
    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        indices = dictionary_indices(array)
        if array.null_count < len(array) and not 0 <= int(indices.min()) <= int(indices.max()) < len(array.dictionary):
            raise ValueError("an index beyond the dictionary")
        _check(array.dictionary)
    elif pyarrow.types.is_string_view(kind):
        array.view(pyarrow.binary_view()).validate(full=True)
    elif not pyarrow.types.is_null(kind) and len(array):
        is_wide = pyarrow.types.is_large_list(kind) or pyarrow.types.is_large_string(kind)
        offset_buffer = array.buffers()[1]
        offsets = np.frombuffer(offset_buffer, np.int64 if is_wide else np.int32)[array.offset :][: len(array) + 1]
        values = array.values if is_list(kind) else array.buffers()[2]
        size = 0 if values is None else len(values) if is_list(kind) else values.size
        if len(offsets) <= len(array) or int(offsets[0]) < 0 or int(offsets[-1]) > size or bool(np.any(np.diff(offsets) < 0)):
            raise ValueError("offsets beyond the values")
        if is_list(kind):
            _check(values)
