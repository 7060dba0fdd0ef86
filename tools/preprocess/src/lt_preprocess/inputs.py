"""Read JSON lines in chunks of whole lines, from files, remote objects and standard input, compressed or not.

Compression is recognised by the first bytes, not the name, so it also works for a pipe. Several compressed streams in one file
(`cat a.gz b.gz`, bgzip, pzstd) are read one after the other, and a stream that was cut off is an error: zstandard's own reader
takes it for the end of the file. Memory is bounded by the chunk size and the longest line.
"""

import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import zstandard

from lt_preprocess import chunks as pieces
from lt_preprocess.chunks import CHUNK_BYTES, Chunk, MemoryChunk, Position
from lt_preprocess.slices import Slice
from lt_shared import storage
from lt_shared.console import BadData, UsageError, note

STDIN = "-"

_READ_BYTES = 1 << 18
_COMPRESSED_READ_BYTES = 1 << 14
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def _decompressor_for(start: bytes) -> Callable[[], Any] | None:
    if start.startswith(b"\x1f\x8b"):
        return lambda: zlib.decompressobj(wbits=31)
    if start.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMADecompressor
    is_skippable_frame = len(start) >= 4 and start[0] & 0xF0 == 0x50 and start[1:4] == b"\x2a\x4d\x18"
    if start.startswith(b"\x28\xb5\x2f\xfd") or is_skippable_frame:
        return zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj
    return None


def display_name(path: str) -> str:
    """The input as messages name it."""
    return "standard input" if path == STDIN else path


def resolve(patterns: Sequence[str]) -> list[str]:
    """The inputs that the arguments name, in order. Raises NoInput for a pattern that matches nothing."""
    return storage.expand(patterns)


def _open(path: str) -> IO[bytes]:
    if path != STDIN:
        return storage.open_read(path)
    if sys.stdin.isatty():
        note("waiting for documents on standard input")
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb")


def _read_some(file: IO[bytes], size: int, advance: Callable[[int], None]) -> bytes:
    """At most `size` bytes as soon as there are any: a slow producer at the other end of a pipe is not waited for."""
    data = file.read1(size) if hasattr(file, "read1") else file.read(size)
    advance(len(data))
    return data


def _content(path: str, file: IO[bytes], advance: Callable[[int], None]) -> Iterator[bytes]:
    """The decompressed content in parts; `advance` counts the bytes that were read, compressed ones for a compressed input."""
    start = b""
    while len(start) < 6 and (more := _read_some(file, _COMPRESSED_READ_BYTES, advance)):
        start += more
    new_decompressor = _decompressor_for(start)
    if start.startswith(b"BZh"):
        raise BadData(f"{display_name(path)}: compressed with bzip2, which is not read", "bzip2 -dc FILE | lt-preprocess - ...")
    if new_decompressor is None:
        part = start
        while part:
            yield part
            part = _read_some(file, _READ_BYTES, advance)
        return
    decompressor = None
    data = start
    while data:
        if decompressor is None:
            data = data.lstrip(b"\x00")
            decompressor = new_decompressor() if data else None
        if decompressor is not None:
            try:
                content = decompressor.decompress(data)
            except (zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
                raise BadData(f"{display_name(path)}: damaged compressed data: {error}") from None
            if content:
                yield content
            if decompressor.eof:
                data = decompressor.unused_data
                decompressor = None
                if data:
                    continue
        data = _read_some(file, _COMPRESSED_READ_BYTES, advance)
    if decompressor is not None:
        raise BadData(f"{display_name(path)}: the compressed data ends too early", "the file is truncated: copy it again")


def _without_byte_order_mark(parts: Iterator[bytes]) -> Iterator[bytes]:
    start = b""
    for part in parts:
        start += part
        if len(start) >= len(_BYTE_ORDER_MARK):
            break
    yield start.removeprefix(_BYTE_ORDER_MARK)
    yield from parts


def chunks(paths: Sequence[str], part: Slice, start: Position, advance: Callable[[int], None]) -> Iterator[Chunk]:
    """The chunks of one part of the input from `start` on; `advance` counts the stored bytes that were read or passed over.

    Raises: NoInput for a file that cannot be opened, BadData for damaged or truncated compressed data, for a file that changes
    while it is read, and for a line of more than LONGEST_LINE_BYTES.
    """
    if part.count > 1:
        raise UsageError("parts of the input are not read yet")
    for index in range(start.input, len(paths)):
        yield from _chunks_of(paths[index], start if index == start.input else Position(index), advance)


def _chunks_of(path: str, start: Position, advance: Callable[[int], None]) -> Iterator[Chunk]:
    name = display_name(path)
    position = Position(start.input)
    waiting: list[bytes] = []
    waiting_bytes = 0
    has_whole_line = False
    with _open(path) as file:
        for part in _without_byte_order_mark(_content(path, file, advance)):
            waiting.append(part)
            waiting_bytes += len(part)
            has_whole_line = has_whole_line or b"\n" in part
            if waiting_bytes > pieces.LONGEST_LINE_BYTES and not has_whole_line:
                raise BadData(
                    f"{name}, line {position.line}: longer than {pieces.LONGEST_LINE_BYTES >> 30} GiB", "is this JSON lines?"
                )
            if waiting_bytes < CHUNK_BYTES or not has_whole_line:
                continue
            content = b"".join(waiting)
            begin = 0
            while len(content) - begin >= CHUNK_BYTES:
                middle = begin + CHUNK_BYTES
                end = (content.rfind(b"\n", begin, middle) + 1) or (content.find(b"\n", middle) + 1)
                if end == 0:
                    break
                chunk = MemoryChunk.of(name, content[begin:end], position)
                if position.offset >= start.offset:
                    yield chunk
                position = chunk.end
                begin = end
            waiting = [content[begin:]]
            waiting_bytes = len(waiting[0])
            has_whole_line = b"\n" in waiting[0]
    if waiting_bytes and position.offset >= start.offset:
        yield MemoryChunk.of(name, b"".join(waiting), position)


def total_bytes(paths: Sequence[str], part: Slice = Slice()) -> int | None:  # noqa: B008
    """Stored bytes to read, or None when standard input is among them. Raises NoInput when a file is missing."""
    if STDIN in paths:
        return None
    return sum(storage.size_bytes(path) for path in paths)
