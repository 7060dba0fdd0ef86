"""Read the source lines of documents, with the byte at which each line begins.

Each file is read once for all requested lines. A plain file is read from the nearest known byte, at most 16 MiB before
the line; a compressed one from its beginning, since nothing in it can be found otherwise: gzip, bzip2 and xz everywhere, zstd
if Python or backports.zstd supports it. A file that was changed since its documents were tokenized is not read.
"""

import bz2
import importlib
import io
import json
import lzma
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

from isal import igzip

from lt_shared.console import BadData, IoFailure, ToolError, Unavailable
from lt_shared.data.document_origins import key_paths
from lt_shared.data.document_origins.origins import File, Known, Place
from lt_shared.files import storage

READ_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 30
RECOGNISED_BYTES = 6
PARQUET_MAGIC = b"PAR1"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
ZSTD_MODULES = ("compression.zstd", "backports.zstd")


class SourceLine(NamedTuple):
    """A source line: its first byte in the decompressed content, and its text without the line break.

    `row` is a Parquet file's. `problem` says why the source could not be looked into. `line` is its number, None where the file
    was cut between shards.
    """

    line: int | None
    offset: int | None = None
    content: bytes | None = None
    row: Any = None
    problem: str | None = None

    def texts(self, json_key: str) -> list[str] | None:
        """The text of the document, or texts of its sequences; None where it is not there.

        A line without the key is a text itself: plain text, or fields that a template has joined.
        """
        if self.row is not None:
            value = key_paths.value_of(self.row, json_key)
            value = json.dumps(self.row, ensure_ascii=False, default=str) if value is key_paths.MISSING else value
        elif self.content is None:
            return None
        else:
            try:
                value = key_paths.value_of(json.loads(self.content), json_key)
            except (ValueError, TypeError, RecursionError):
                value = key_paths.MISSING
            if value is key_paths.MISSING:
                value = self.content.decode(errors="replace")
        return [text for text in value if isinstance(text, str)] if isinstance(value, list) else [str(value)]


def read(places: Sequence[Place | None]) -> list[SourceLine]:
    """Read the source line at each place."""
    source_lines: list[SourceLine] = [SourceLine(None, problem="not known where it comes from")] * len(places)
    # Shards that cut a file number its lines from different bytes, so that their lines have no common order.
    by_file: dict[tuple[str, int], list[int]] = {}
    for index, place in enumerate(places):
        if place is not None:
            by_file.setdefault((place.path, place.counted_from), []).append(index)
    for indexes in by_file.values():
        of_file = [place for index in indexes if (place := places[index]) is not None]
        for index, line in zip(indexes, _of_file(of_file), strict=True):
            source_lines[index] = line
    return source_lines


def _of_file(places: Sequence[Place]) -> list[SourceLine]:
    numbers = [place.line if place.is_numbered else None for place in places]
    try:
        if problem := change(places[0].file):
            raise IoFailure(problem)
        if places[0].kind == "row":
            if not _is_parquet(places[0].path):
                return [SourceLine(number) for number in numbers]
            rows = _parquet_rows(places[0].path, [place.line for place in places])
            return [SourceLine(number, row=row) for number, row in zip(numbers, rows, strict=True)]
        return _lines(places, numbers)
    except ToolError as error:
        return [SourceLine(number, problem=str(error)) for number in numbers]
    except (OSError, EOFError, lzma.LZMAError) as error:
        return [SourceLine(number, problem=f"{places[0].path}: {error}") for number in numbers]


def change(file: File) -> str | None:
    """Say how a file has changed since its documents were tokenized, or return None. Raises NoInput when it is gone."""
    if len(file) == 1:
        return f"{file['path']}: cannot be read again"
    now = storage.fingerprint(file["path"])
    differs = any(file.get(key, value) != value for key, value in now.items() if key != "path")
    return f"{file['path']}: was changed since it was tokenized" if differs else None


def _is_parquet(path: str) -> bool:
    """Whether a file of rows is looked into: of tables, archives and Arrow files only the row's number is known."""
    with storage.open_read(path) as file:
        return file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC


def _parquet_rows(path: str, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Rows by their numbers from 1. Raises Unavailable without pyarrow, BadData for a damaged file and a row beyond its end."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise Unavailable(f"{path}: reading Parquet needs pyarrow", "pip install pyarrow") from None
    row_by_number: dict[int, dict[str, Any]] = {}
    try:
        with storage.open_read(path) as opened, parquet.ParquetFile(opened) as file:
            first = 1
            for group in range(file.num_row_groups):
                end = first + file.metadata.row_group(group).num_rows
                group_numbers = sorted({number for number in numbers if first <= number < end})
                if group_numbers:
                    rows = file.read_row_group(group).take([number - first for number in group_numbers]).to_pylist()
                    row_by_number |= dict(zip(group_numbers, rows, strict=True))
                first = end
        return [row_by_number[number] for number in numbers]
    except KeyError as error:
        raise BadData(f"{path}: has no row {error}") from None
    except (importlib.import_module("pyarrow").ArrowException, OSError) as error:
        raise BadData(f"{path}: damaged Parquet: {error}") from None


def _lines(places: Sequence[Place], numbers: Sequence[int | None]) -> list[SourceLine]:
    order = sorted(range(len(places)), key=lambda index: places[index].line)
    source_lines: list[SourceLine] = [SourceLine(number) for number in numbers]
    with storage.open_read(places[0].path) as stored:
        content, can_seek = _decompressed(stored)
        if places[0].kind == "text":
            text = content.read(LONGEST_LINE_BYTES)
            return [SourceLine(1, 0, text.removeprefix(BYTE_ORDER_MARK))] * len(places)
        lines = _LineReader(content, can_seek)
        for index in order:
            source_lines[index] = SourceLine(numbers[index], *lines.at(places[index].line, places[index].near))
    return source_lines


def _decompressed(stored: IO[bytes]) -> tuple[IO[bytes], bool]:
    """Open the content of a file. The second value is True if the file is not compressed."""
    start = stored.read(RECOGNISED_BYTES)
    stored.seek(0)
    if start.startswith(b"\x1f\x8b"):
        return igzip.open(stored, "rb"), False  # type: ignore[no-untyped-call]
    if start.startswith(b"BZh"):
        return bz2.open(stored, "rb"), False
    if start.startswith(b"\xfd7zXZ\x00"):
        return lzma.open(stored, "rb"), False
    if start.startswith(b"\x28\xb5\x2f\xfd") or (start[:1] and start[0] & 0xF0 == 0x50 and start[1:4] == b"\x2a\x4d\x18"):
        return _zstd(stored), False
    if start.startswith(b"\x04\x22\x4d\x18"):
        return _lz4(stored), False
    return stored, True


def _lz4(stored: IO[bytes]) -> IO[bytes]:
    try:
        opened: IO[bytes] = importlib.import_module("lz4.frame").open(stored, "rb")
    except ImportError:
        raise IoFailure("compressed with lz4, which needs the package lz4", "pip install lz4") from None
    return opened


def _zstd(stored: IO[bytes]) -> IO[bytes]:
    for name in ZSTD_MODULES:
        try:
            module: Any = importlib.import_module(name)
        except ImportError:
            continue
        options = {module.DecompressionParameter.window_log_max: 31}
        opened: IO[bytes] = module.ZstdFile(stored, "rb", options=options)
        return opened
    raise IoFailure("compressed with zstd, which this Python does not read", "pip install backports.zstd")


class _LineReader:
    """Finds lines in ascending order. readline() takes 1.5 s for a GB of lines of 3 kB, and the content needs 1 s at least."""

    def __init__(self, file: IO[bytes], can_seek: bool):
        self._file = io.BufferedReader(file, READ_BYTES) if can_seek else file  # type: ignore[type-var]
        self._can_seek = can_seek
        self._next = Known(1, 0)
        self._last = (Known(0, 0), b"")

    def at(self, line: int, near: Known) -> tuple[int, bytes]:
        """The first byte of a line and its content. Raises IoFailure when the file ends before."""
        if near.line > self._next.line or (near.line == self._next.line and near.offset > self._next.offset):
            self._go_to(near)
        while self._last[0].line < line:
            self._read()
        position, content = self._last
        has_mark = position.offset == 0 and content.startswith(BYTE_ORDER_MARK)
        skipped = len(BYTE_ORDER_MARK) if has_mark else 0
        return position.offset + skipped, content[skipped:].rstrip(b"\r\n")

    def _go_to(self, near: Known) -> None:
        if self._can_seek:
            self._file.seek(near.offset)
        else:
            while (remaining_bytes := near.offset - self._next.offset) > 0:
                skipped = len(self._file.read(min(remaining_bytes, READ_BYTES)))
                self._next = self._next._replace(offset=self._next.offset + skipped)
                if not skipped:
                    raise IoFailure("ends before the line that a document was made of")
        self._next = near

    def _read(self) -> None:
        content = self._file.readline(LONGEST_LINE_BYTES)
        if not content:
            raise IoFailure("ends before the line that a document was made of")
        self._last = (self._next, content)
        self._next = Known(self._next.line + 1, self._next.offset + len(content))
