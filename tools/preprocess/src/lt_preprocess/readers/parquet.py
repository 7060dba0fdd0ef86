"""Parquet files: a row is a document, a column of strings or of lists of strings is a key.

The pages of a column are read on demand, so a row group of gigabytes needs no more memory than a small row group. The number of
rows decoded at once depends on their decoded size, which a file does not state: a dictionary or a shared prefix may be a
thousandth of it. Page checksums, if a file has them, are verified.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from lt_preprocess.readers import chunks
from lt_preprocess.readers.arrow_rows import Columns, RowsChunk, WaitingRows, load_pyarrow, text_bytes_of_rows
from lt_preprocess.readers.chunks import Position
from lt_preprocess.texts import Lengths
from lt_shared.console import BadData

FIRST_ROWS, FEWEST_ROWS, MOST_ROWS, GROWTH = 16, 8, 1024, 8
"""Rows that are decoded at once: at first, when they are large, when they are small; and by what factor it grows."""

MOST_TIMES_TOO_LARGE = 4


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
    columns = Columns(source, file.schema_arrow, json_keys)
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
    """How many rows are decoded at once, and at most."""

    rows = FIRST_ROWS


def _batches(file: Any, group: int, columns: Columns, begin: int, step: _Step) -> Iterator[tuple[Any, Lengths]]:
    """The rows of a row group from `begin` on, decoded a few at a time, and the bytes of text in each.

    The library decodes a fixed number of rows at once, so another number means to decode the row group again up to here. That
    happens when rows turn out small, at the beginning, and when they turn out large, each time by a factor.
    """
    while begin < file.metadata.row_group(group).num_rows:
        rows_at_once = step.rows
        next_row = 0
        for table in file.iter_batches(rows_at_once, [group], columns.names, use_threads=False):
            first, next_row = next_row, next_row + len(table)
            if next_row <= begin:
                continue
            batch = columns.select(table)
            row_bytes = text_bytes_of_rows(batch)
            skip = max(begin - first, 0)
            yield batch.slice(skip), row_bytes[skip:]
            begin = next_row
            step.rows = _next_rows(rows_at_once, int(row_bytes.sum()), len(batch))
            if step.rows != rows_at_once:
                break
        else:
            return


def _next_rows(rows: int, size_bytes: int, decoded_rows: int) -> int:
    """How many rows to decode at once, when `rows` were asked for and `decoded_rows` of `size_bytes` came."""
    if size_bytes > MOST_TIMES_TOO_LARGE * chunks.CHUNK_BYTES:
        return max(chunks.CHUNK_BYTES * decoded_rows // size_bytes, min(rows, FEWEST_ROWS))
    if rows < MOST_ROWS and decoded_rows == rows and size_bytes * GROWTH <= chunks.CHUNK_BYTES:
        return min(rows * GROWTH, MOST_ROWS)
    return rows


def _share(size_bytes: int, rows: int, row: int) -> int:
    return size_bytes * row // max(rows, 1)
