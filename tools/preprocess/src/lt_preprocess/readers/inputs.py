"""List the inputs, and read their content in chunks.

The first bytes of a file choose its reader (compressed, Parquet, an archive, a table), then its name (`.txt` is plain text).
Lines of files and remote objects are read at offsets by the workers, other formats by the thread that asks for chunks.
"""

import dataclasses
import itertools
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Literal

from lt_preprocess.readers import chunks as chunk_limits
from lt_preprocess.readers import foreign_formats, record_formats, text_table
from lt_preprocess.readers.byte_ranges import BYTE_ORDER_MARK, LocalFile, RangeFile, RemoteFile, range_chunks
from lt_preprocess.readers.byte_stream import ByteStream
from lt_preprocess.readers.chunks import Chunk, Position
from lt_preprocess.readers.decompression import RECOGNISED_BYTES, decompressed, decompressor_for
from lt_preprocess.readers.foreign_formats import HEAD_BYTES, PARQUET_MAGIC
from lt_preprocess.readers.jsonl import MemoryChunk
from lt_preprocess.readers.parquet import row_chunks
from lt_preprocess.readers.paths import STDIN as STDIN
from lt_preprocess.readers.paths import display_name as display_name
from lt_preprocess.readers.paths import expand_patterns as expand_patterns
from lt_preprocess.readers.paths import is_never_empty, is_text
from lt_preprocess.readers.plain_text import TextChunk
from lt_preprocess.readers.slices import WHOLE, Piece, Slice, pieces
from lt_shared.console import BadData, NoInput, UsageError, note
from lt_shared.files import storage

_READ_BYTES = 1 << 18
_COMPRESSED_READ_BYTES = 1 << 16

SampleBy = Literal["document", "line"]
"""What a document of a plain text is."""

Advance = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Selection:
    """The texts to read: the keys, and whether a plain text is one document or has a document a line."""

    json_keys: tuple[str, ...]
    sample_by: SampleBy = "document"

    def is_text(self, path: str) -> bool:
        """Whether the input is plain text: by its name, or because it is a pipe and plain text has a document a line."""
        return is_text(path) or (self.sample_by == "line" and not _is_seekable(path))

    def is_one_text(self, path: str) -> bool:
        return self.sample_by == "document" and is_text(path)

    def is_text_lines(self, path: str) -> bool:
        return self.sample_by == "line" and self.is_text(path)


def total_bytes(paths: Sequence[str], part: Slice = WHOLE, sample_by: SampleBy = "document") -> int | None:
    """The bytes to read, as stored; None where the size is not known: standard input, a pipe.

    Raises NoInput when a file is missing.
    """
    if any(not _is_seekable(path) for path in paths):
        return None
    return sum(piece.stop - piece.begin for piece in _pieces(paths, part, Selection((), sample_by)))


def chunks(
    paths: Sequence[str],
    part: Slice,
    start: Position,
    advance: Advance,
    json_keys: tuple[str, ...],
    sample_by: SampleBy = "document",
) -> Iterator[Chunk]:
    """Yield the chunks of a slice of the input from `start` on; `advance` gets the number of stored bytes read or skipped.

    Raises: NoInput for a file that cannot be opened, BadData for damaged or truncated compressed data, for a file that changes
    while it is read, and for a line of more than LONGEST_LINE_BYTES.
    """
    selection = Selection(json_keys, sample_by)
    for piece in _pieces(paths, part, selection):
        if piece.input < start.input:
            advance(piece.stop - piece.begin)
        else:
            begin = start if piece.input == start.input else Position(piece.input)
            yield from _chunks_of(paths[piece.input], piece, begin, advance, selection)


def _pieces(paths: Sequence[str], part: Slice, selection: Selection) -> Iterator[Piece]:
    if part.count == 1:
        for number, path in enumerate(paths):
            size = storage.size_bytes(path) if _is_seekable(path) else 0
            yield Piece(number, 0, size)
        return
    for path in paths:
        if not _is_seekable(path):
            raise UsageError(f"{display_name(path)}: cannot be divided into shards", "name files")
    sizes = [storage.size_bytes(path) for path in paths]
    yield from pieces(sizes, lambda number: _can_be_cut(paths[number], selection), part)


def _is_seekable(path: str) -> bool:
    """Whether a path is a file or an object of known size; standard input, pipes and devices are not."""
    if path == STDIN:
        return False
    if storage.is_remote(path):
        return True
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        raise storage.no_such_file(path) from None
    except OSError as error:
        raise NoInput(f"{path}: {error.strerror}") from None


def _can_be_cut(path: str, selection: Selection) -> bool:
    start = _range_file(path).read(0, HEAD_BYTES)
    if selection.is_one_text(path) or start.startswith(PARQUET_MAGIC) or decompressor_for(start[:RECOGNISED_BYTES]):
        return False
    return selection.is_text_lines(path) or record_formats.reader_for(path, start, selection.json_keys) is None


def _range_file(path: str) -> RangeFile:
    return RemoteFile(path) if storage.is_remote(path) else LocalFile(path)


def _chunks_of(path: str, piece: Piece, start: Position, advance: Advance, selection: Selection) -> Iterator[Chunk]:
    if selection.is_text(path) and len(selection.json_keys) > 1:
        raise UsageError(f"{display_name(path)}: a plain text has no keys", "give one --json-keys with plain text")
    if not _is_seekable(path):
        with _open(path) as stream:
            yield from _stream_chunks(path, stream, start, advance, selection)
        return
    file = _range_file(path)
    first_bytes = file.read(0, HEAD_BYTES)
    if not first_bytes and is_never_empty(path):
        raise BadData(f"{path}: the file is empty", "it was not copied: copy it again")
    if first_bytes.startswith(PARQUET_MAGIC):
        with storage.open_read(path) as stream:
            rows = stream if storage.is_remote(path) else path
            yield from row_chunks(path, rows, selection.json_keys, start, file.size_bytes, advance)
        file.check_unchanged()
    elif decompressor_for(first_bytes) or _reader_for(path, first_bytes, selection):
        with storage.open_read(path) as stream:
            yield from _stream_chunks(path, stream, start, advance, selection)
        file.check_unchanged()
    else:
        is_text = selection.is_text(path)
        foreign_formats.check(path, first_bytes, is_text)
        foreign_formats.check_compression(path, first_bytes, is_text)
        yield from _plain_chunks(path, file, piece, start, advance, selection)


def _reader_for(path: str, first_bytes: bytes, selection: Selection) -> record_formats.Reader | None:
    if selection.is_text_lines(path):
        return None
    return record_formats.reader_for(path, first_bytes, selection.json_keys)


def _plain_chunks(
    path: str, file: RangeFile, piece: Piece, start: Position, advance: Advance, selection: Selection
) -> Iterator[Chunk]:
    """Yield the chunks of an uncompressed file: one plain text, or lines."""
    if selection.is_one_text(path):
        if file.size_bytes > chunk_limits.LONGEST_LINE_BYTES:
            raise _text_too_long(path)
        if start.offset == 0:
            yield TextChunk(
                path, _after_text(start, file.size_bytes), lambda: _without_byte_order_mark(file.read(0, file.size_bytes))
            )
        advance(file.size_bytes)
    else:
        begin = max(piece.begin, start.offset)
        advance(begin - piece.begin)
        yield from range_chunks(file, piece.input, begin, piece.stop, advance, selection.is_text_lines(path))


def _stream_chunks(path: str, stream: IO[bytes], start: Position, advance: Advance, selection: Selection) -> Iterator[Chunk]:
    """The chunks of an input that is read from its beginning."""
    name = display_name(path)
    first_bytes, parts = _content(path, stream, advance, selection)
    if read_rows := _reader_for(path, first_bytes, selection):
        yield from read_rows(ByteStream(parts), start)
    elif not selection.is_one_text(path):
        yield from _line_chunks(name, _skip_bytes(parts, start.offset), start, selection.is_text_lines(path))
    elif start.offset == 0:
        content = _all_of(name, parts)
        yield TextChunk(name, _after_text(start, len(content)), lambda: _without_byte_order_mark(content))


def _content(path: str, stream: IO[bytes], advance: Advance, selection: Selection) -> tuple[bytes, Iterator[bytes]]:
    """Return the first bytes of the decompressed content, and all of it in pieces. Raises BadData if it holds no documents."""
    name = display_name(path)
    is_text = selection.is_text(path)

    def read(size: int) -> bytes:
        # A slow producer at the other end of a pipe is not waited for.
        data = stream.read1(size) if hasattr(stream, "read1") else stream.read(size)
        advance(len(data))
        return data

    start = b""
    while len(start) < RECOGNISED_BYTES and (more := read(_COMPRESSED_READ_BYTES)):
        start += more
    if start.startswith(PARQUET_MAGIC):
        raise BadData(f"{name}: Parquet cannot be read from a pipe", "name the file")
    if not decompressor_for(start):
        # A row of names may come alone through a pipe.
        while not is_text and len(start) < HEAD_BYTES and text_table.is_undecided(start):
            if not (more := read(_COMPRESSED_READ_BYTES)):
                break
            start += more
        if _reader_for(path, start[:HEAD_BYTES], selection) is None:
            foreign_formats.check(path, start[:HEAD_BYTES], is_text)
        return start[:HEAD_BYTES], itertools.chain([start], iter(lambda: read(_READ_BYTES), b""))
    parts = decompressed(name, start, lambda: read(_COMPRESSED_READ_BYTES))
    start = b""
    while len(start) < HEAD_BYTES and (part := next(parts, b"")):
        start += part
    if _reader_for(path, start[:HEAD_BYTES], selection) is None:
        foreign_formats.check_decompressed(path, start[:HEAD_BYTES], is_text)
    return start[:HEAD_BYTES], itertools.chain([start] if start else [], parts)


def _all_of(name: str, parts: Iterator[bytes]) -> bytes:
    content = bytearray()
    for part in parts:
        content += part
        if len(content) > chunk_limits.LONGEST_LINE_BYTES:
            raise _text_too_long(name)
    return bytes(content)


def _text_too_long(name: str) -> BadData:
    return BadData(f"{name}: a text of more than {chunk_limits.LONGEST_LINE_BYTES >> 30} GiB", "split it")


def _after_text(start: Position, size: int) -> Position:
    """The position after a text; never the beginning, since an empty text is counted, too."""
    return Position(start.input, max(size, 1))


def _without_byte_order_mark(content: bytes) -> bytes:
    return content.removeprefix(BYTE_ORDER_MARK)


def _open(path: str) -> IO[bytes]:
    if path != STDIN:
        return storage.open_read(path)
    if sys.stdin.isatty():
        note("waiting for documents on standard input")
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb")


def _skip_bytes(parts: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The parts without the first `size` bytes."""
    for part in parts:
        if size < len(part):
            yield part[size:] if size else part
        size = max(0, size - len(part))


def _line_chunks(source: str, parts: Iterator[bytes], start: Position, is_text: bool) -> Iterator[MemoryChunk]:
    """Chunks of whole lines, about CHUNK_BYTES each, or one longer line. The last line needs no line break.

    `parts` are the content from `start` on. Raises BadData for a line of more than LONGEST_LINE_BYTES.
    """
    waiting = bytearray()
    position = start
    searched = 0
    for part in parts:
        waiting += part
        if position.offset == 0:
            if BYTE_ORDER_MARK.startswith(waiting) and len(waiting) < len(BYTE_ORDER_MARK):
                continue
            if waiting.startswith(BYTE_ORDER_MARK):
                del waiting[: len(BYTE_ORDER_MARK)]
                position = position._replace(offset=len(BYTE_ORDER_MARK))
        while len(waiting) >= chunk_limits.CHUNK_BYTES:
            end = waiting.rfind(b"\n", searched, chunk_limits.CHUNK_BYTES) + 1
            if not end:
                end = waiting.find(b"\n", max(searched, chunk_limits.CHUNK_BYTES)) + 1
            if not end:
                searched = len(waiting)
                break
            chunk = MemoryChunk.of(source, bytes(memoryview(waiting)[:end]), position, is_text)
            del waiting[:end]
            searched = 0
            position = chunk.end
            yield chunk
        if len(waiting) > chunk_limits.LONGEST_LINE_BYTES:
            raise chunk_limits.line_too_long(source, position.line, position.offset)
    if waiting and not (position.offset == 0 and waiting == BYTE_ORDER_MARK):
        yield MemoryChunk.of(source, bytes(waiting), position, is_text)
