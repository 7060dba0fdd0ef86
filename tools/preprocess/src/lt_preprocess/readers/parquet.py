"""Parquet files: a row is a document, a column of strings or of lists of strings is a key.

The pages of a column are read on demand, so a row group of gigabytes needs no more memory than a small row group. The number of
rows decoded at once depends on their decoded size, which a file does not state: a dictionary or a shared prefix may be a
thousandth of it. Page checksums, if a file has them, are verified.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from lt_preprocess.readers import chunks
from lt_preprocess.readers.arrow_columns import Columns, columns_for
from lt_preprocess.readers.arrow_rows import RowsChunk, WaitingRows, load_pyarrow, text_bytes_of_rows
from lt_preprocess.readers.chunks import Position
from lt_preprocess.texts import Lengths
from lt_shared.console import BadData

MOST_ROWS, GROWTH = 1024, 8
"""Rows that are decoded at once, from one on: at most, and by what factor their number grows."""

MOST_TIMES_TOO_LARGE = 16
"""How many times CHUNK_BYTES rows as large as the largest of the last rows may have together."""


def row_chunks(
    source: str, file: str | IO[bytes], json_keys: Sequence[str], start: Position, size_bytes: int, advance: Callable[[int], None]
) -> Iterator[RowsChunk]:
    """The rows from `start` on. Raises BadData for a file that is damaged or has no such column of texts."""
    pyarrow = load_pyarrow()
    try:
        with pyarrow.parquet.ParquetFile(
            file, buffer_size=chunks.CHUNK_BYTES, pre_buffer=False, page_checksum_verification=True
        ) as rows:
            yield from _row_chunks(source, rows, json_keys, start, size_bytes, advance)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadData(f"{source}: damaged Parquet: {error}", "copy the file again") from None


def _row_chunks(
    source: str, file: Any, json_keys: Sequence[str], start: Position, size_bytes: int, advance: Callable[[int], None]
) -> Iterator[RowsChunk]:
    columns = columns_for(source, file.schema_arrow, json_keys)
    advanced = functools.partial(_share, size_bytes, file.metadata.num_rows)
    waiting = WaitingRows(source, start.input, json_keys, columns.types)
    step = _Step()
    first_row = 0
    for group in range(file.num_row_groups):
        group_rows = file.metadata.row_group(group).num_rows
        begin = min(max(start.offset - first_row, 0), group_rows)
        advance(advanced(first_row + begin) - advanced(first_row))
        row = first_row + begin
        for batch, row_bytes in _batches(file, group, columns, begin, step):
            yield from waiting.add(batch, row_bytes, row)
            advance(advanced(row + len(batch)) - advanced(row))
            row += len(batch)
        first_row += group_rows
        if row != first_row:
            raise BadData(
                f"{source}: damaged Parquet: row group {group} has {row - first_row + group_rows} rows, not {group_rows}"
            )
    yield from waiting.last()


class _Step:
    """How many rows to decode at once, for the whole file."""

    rows = 1

    def adapt(self, row_bytes: Lengths) -> None:
        """Choose the next number of rows by the size of the last rows."""
        mean_bytes = int(row_bytes.sum()) // len(row_bytes) + 1
        largest_bytes = int(row_bytes.max()) + 1
        fitting = min(chunks.CHUNK_BYTES // mean_bytes, MOST_TIMES_TOO_LARGE * chunks.CHUNK_BYTES // largest_bytes)
        self.rows = max(1, min(fitting, self.rows * GROWTH, MOST_ROWS))


def _batches(file: Any, group: int, columns: Columns, begin: int, step: _Step) -> Iterator[tuple[Any, Lengths]]:
    """The rows of a row group from `begin` on, decoded a few at a time, and the bytes of text in each.

    pyarrow looks at the reader's batch size before every batch (seen in 15 and 26), so the number of rows follows their sizes.
    """
    next_row = 0
    for table in file.iter_batches(step.rows, [group], columns.names, use_threads=False):
        first, next_row = next_row, next_row + len(table)
        batch = columns.select(table)
        row_bytes = text_bytes_of_rows(batch)
        if len(batch):
            step.adapt(row_bytes)
            file.reader.set_batch_size(step.rows)
        if next_row > begin:
            skip = max(begin - first, 0)
            yield batch.slice(skip), row_bytes[skip:]


def _share(size_bytes: int, rows: int, row: int) -> int:
    return size_bytes * row // max(rows, 1)
