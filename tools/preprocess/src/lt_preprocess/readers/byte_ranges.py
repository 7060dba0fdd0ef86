"""Files of plain JSON lines that are read at offsets, by the workers themselves.

A chunk owns the lines whose first byte lies between its two offsets, so the thread that makes chunks only adds numbers; the
worker finds the line starts. A local file is checked after each read and a remote object after its last: one that
changed since it was opened would be read half old and half new.
"""

import abc
import bisect
import contextlib
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np

from lt_preprocess.readers import chunks
from lt_preprocess.readers.chunks import MARGIN_BYTES, Lines, Position
from lt_preprocess.readers.jsonl import LinesChunk
from lt_preprocess.texts import PADDING_BYTES
from lt_shared.console import BadData, IoFailure
from lt_shared.files import storage

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
REMOTE_CHUNK_BYTES = 1 << 22
"""A request to a remote store takes some 30 ms, however small it is."""

_TAIL_BYTES = 1 << 16
"""Read beyond a chunk at first, to find the end of its last line."""


def _changed(path: str) -> BadData:
    return BadData(f"{path}: changed while it was read", "start again when nothing writes to it any more")


def _close(descriptor: int) -> None:
    # A network filesystem may report an error of the disk here; of a file that was only read, nothing is lost.
    with contextlib.suppress(OSError):
        os.close(descriptor)


class RangeFile(abc.ABC):
    """A file of `size_bytes` that several threads read at offsets."""

    chunk_bytes: int

    def __init__(self, path: str, size_bytes: int):
        self.path = path
        self.size_bytes = size_bytes

    @abc.abstractmethod
    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer`, which does not reach beyond the end of the file. Raises BadData for a file that has changed."""

    @abc.abstractmethod
    def line_at(self, offset: int) -> int | None:
        """The number of the line that begins at `offset`, or None where it would cost too much to know."""

    @abc.abstractmethod
    def check_unchanged(self) -> None:
        """Raises BadData for a file that has changed since it was opened."""

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes: fewer at the end of the file."""
        buffer = bytearray(max(0, min(size, self.size_bytes - offset)))
        self.read_into(memoryview(buffer), offset)
        return bytes(buffer)


class LocalFile(RangeFile):
    """A regular file, closed when its last chunk is gone."""

    chunk_bytes = chunks.CHUNK_BYTES

    def __init__(self, path: str):
        with storage.open_read(path) as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, _close, self._descriptor)
        status = os.fstat(self._descriptor)
        super().__init__(path, status.st_size)
        self._modified_ns = status.st_mtime_ns
        self._lock = threading.Lock()
        self._known_lines = [(0, 1)]

    def read_into(self, buffer: memoryview, offset: int) -> None:
        filled = 0
        while filled < len(buffer) and (size := os.preadv(self._descriptor, [buffer[filled:]], offset + filled)):
            filled += size
        self.check_unchanged()
        if filled < len(buffer):
            raise _changed(self.path)

    def check_unchanged(self) -> None:
        now = os.fstat(self._descriptor)
        if (now.st_size, now.st_mtime_ns) != (self.size_bytes, self._modified_ns):
            raise _changed(self.path)

    def line_at(self, offset: int) -> int:
        """Counts the line breaks from the nearest smaller offset whose line is known."""
        with self._lock:
            counted_offset, line = self._known_lines[bisect.bisect_right(self._known_lines, (offset, self.size_bytes + 2)) - 1]
            while counted_offset < offset:
                part = self.read(counted_offset, min(self.chunk_bytes, offset - counted_offset))
                line += part.count(b"\n")
                counted_offset += len(part)
            bisect.insort(self._known_lines, (offset, line))
            return line


class RemoteFile(RangeFile):
    """An object of a store that serves byte ranges. Lines are not numbered: that would read all lines before them again."""

    chunk_bytes = REMOTE_CHUNK_BYTES

    def __init__(self, path: str):
        super().__init__(path, storage.size_bytes(path))
        self._fingerprint = storage.fingerprint(path)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        content = storage.read_range(self.path, offset, offset + len(buffer)) if len(buffer) else b""
        if len(content) > len(buffer):
            raise IoFailure(f"{self.path}: the server does not serve byte ranges", "curl URL | lt-preprocess - ...")
        if len(content) < len(buffer):
            raise _changed(self.path)
        buffer[:] = content

    def line_at(self, offset: int) -> int | None:
        return None

    def check_unchanged(self) -> None:
        if storage.fingerprint(self.path, refresh=True) != self._fingerprint:
            raise _changed(self.path)


@dataclasses.dataclass(frozen=True)
class RangeChunk(LinesChunk):
    """The lines whose first byte is at `begin` or after it, and before `end.offset`."""

    file: RangeFile
    begin: int

    def read(self) -> Lines:
        first = max(self.begin - 1, 0)
        size = min(self.end.offset + _TAIL_BYTES, self.file.size_bytes) - first
        buffer = bytearray(MARGIN_BYTES + size)
        self._fill(buffer, MARGIN_BYTES, first)
        stop = MARGIN_BYTES + self.end.offset - first
        if self.begin == 0:
            start = MARGIN_BYTES + (len(BYTE_ORDER_MARK) if buffer.startswith(BYTE_ORDER_MARK, MARGIN_BYTES) else 0)
        else:
            start = buffer.find(b"\n", MARGIN_BYTES, stop - 1) + 1
        end = start and self._line_end(buffer, max(start, stop - 1), first)
        if self.end.offset == self.file.size_bytes:
            self.file.check_unchanged()
        buffer.extend(bytes(PADDING_BYTES))
        offset = first + start - MARGIN_BYTES
        return Lines(np.frombuffer(buffer, np.uint8), start, end, offset, lambda: self.file.line_at(offset))

    def _fill(self, buffer: bytearray, index: int, offset: int) -> None:
        """Read the bytes of the file from `offset` on into buffer[index:]."""
        with memoryview(buffer) as view:
            self.file.read_into(view[index:], offset)

    def _line_end(self, buffer: bytearray, index: int, first: int) -> int:
        """The index after the first line break in buffer[index:]; reads more until there is one or the file ends.

        buffer[MARGIN_BYTES] is the byte at offset `first` of the file.
        """
        line_start = max(buffer.rfind(b"\n", 0, index) + 1, MARGIN_BYTES)
        while (end := buffer.find(b"\n", index) + 1) == 0:
            index = len(buffer)
            offset = first + index - MARGIN_BYTES
            allowed_bytes = line_start + chunks.LONGEST_LINE_BYTES + 1 - index
            size = min(index, allowed_bytes, self.file.size_bytes - offset)
            if allowed_bytes <= 0:
                start = first + line_start - MARGIN_BYTES
                raise chunks.line_too_long(self.source, self.file.line_at(start), start)
            if size == 0:
                return index
            buffer.extend(bytes(size))
            self._fill(buffer, index, offset)
        return end


def range_chunks(
    file: RangeFile, input_number: int, begin: int, stop: int, advance: Callable[[int], None], is_text: bool = False
) -> Iterator[RangeChunk]:
    """The chunks that own the lines from `begin` to `stop`."""
    while begin < stop:
        end = min(begin + file.chunk_bytes, stop)
        yield RangeChunk(file.path, Position(input_number, end, 0), file, begin, is_text=is_text)
        advance(end - begin)
        begin = end
