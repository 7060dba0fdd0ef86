"""Read compressed logs as if they were plain: gzip, zstd, xz and bzip2, recognised by the first bytes and not by the name.

Several streams in one file (`cat a.gz b.gz`, a log that each job appends to) are read one after the other. A file that is cut off
or damaged, or that its job is still writing, gives everything before that place; `problem` then says why no more was read.
"""

import bz2
from collections.abc import Callable
from types import TracebackType
from typing import IO, cast

from lt_shared.files import decompressors
from lt_shared.files.decompressors import Decompressor

# Longer than any of the marks below.
MARK_BYTES = 8
INPUT_BYTES = 1 << 16
OUTPUT_BYTES = 1 << 21
# Marks of zstd's frames without content, which some writers put first.
_SKIPPABLE = tuple(bytes([0x50 + number, 0x2A, 0x4D, 0x18]) for number in range(16))
_CUT = "is cut off, or still being written, in the middle of its compressed data"


_FORMATS: tuple[tuple[tuple[bytes, ...], Callable[[], Decompressor]], ...] = (
    ((b"\x1f\x8b\x08",), decompressors.gzip),
    ((b"\xfd7zXZ\x00",), decompressors.xz),
    (tuple(b"BZh%d" % level for level in range(1, 10)), bz2.BZ2Decompressor),
    ((b"\x28\xb5\x2f\xfd", *_SKIPPABLE), decompressors.zstd),
)


def is_compressed(begin: bytes) -> bool:
    """Whether a file with these first bytes is compressed in a format that this module reads."""
    return _format(begin) is not None


def decompressing(file: IO[bytes]) -> IO[bytes]:
    """Return `file`, which stands at its beginning, or a reader of its content if it is compressed."""
    if hasattr(file, "peek"):
        begin = file.peek(MARK_BYTES)
    else:
        begin = file.read(MARK_BYTES)
        file.seek(0)
    return cast(IO[bytes], DecompressedLog(file)) if is_compressed(begin) else file


def problem_of(log: IO[bytes]) -> str | None:
    """Return why a log from `decompressing` gave less than its whole content, as a phrase after the log's name."""
    return log.problem if isinstance(log, DecompressedLog) else None


class DecompressedLog:
    """The content of a compressed file, with the methods of a binary file that readers of logs use.

    Offsets are in the content. Going back begins at the first byte of the file again.
    """

    def __init__(self, file: IO[bytes]):
        self.problem: str | None = None
        self._file = file
        self._decompressor: Decompressor | None = None
        self._input = b""
        self._content = b""
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes of the content, fewer only at its end; the whole rest for a negative size."""
        pieces, length = [], 0
        while (size < 0 or length < size) and (piece := self.read1(OUTPUT_BYTES if size < 0 else size - length)):
            pieces.append(piece)
            length += len(piece)
        return b"".join(pieces)

    def read1(self, size: int) -> bytes:
        """Return at most `size` bytes, as soon as there are some; nothing only at the end."""
        while not self._content and self._decompress():
            pass
        content, self._content = self._content[:size], self._content[size:]
        self._position += len(content)
        return content

    def _decompress(self) -> bool:
        """Decompress the next piece into `_content`. False at the end of what can be read."""
        if self.problem is not None:
            return False
        decompressor = self._decompressor
        if decompressor is None:
            # Tapes and block devices pad files with zeros.
            self._input = self._input.lstrip(b"\0")
            while len(self._input) < MARK_BYTES and (more := self._more()):
                self._input = (self._input + more).lstrip(b"\0")
            if not self._input:
                return False
            new = _format(self._input)
            if new is None:
                self.problem = "has other data behind its compressed data" if self._position else _CUT
                return False
            decompressor = self._decompressor = new()
        if decompressor.needs_input and not self._input:
            self._input = self._more()
            if not self._input:
                self.problem = _CUT
                return False
        try:
            self._content = decompressor.decompress(self._input, OUTPUT_BYTES)
        except decompressors.damage_errors() as error:
            self.problem = f"is damaged in its compressed data ({error})"
            return False
        self._input = b""
        if decompressor.eof:
            self._input, self._decompressor = decompressor.unused_data, None
        return True

    def _more(self) -> bytes:
        read = getattr(self._file, "read1", self._file.read)
        return cast(bytes, read(INPUT_BYTES))

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to `offset` in the content, with whence 2 to its end. Past the end is the end."""
        if whence == 2:
            while self.read1(OUTPUT_BYTES):
                pass
            return self._position
        if offset < self._position:
            self._file.seek(0)
            self.problem, self._decompressor, self._input, self._content, self._position = None, None, b"", b"", 0
        while self._position < offset and self.read1(min(OUTPUT_BYTES, offset - self._position)):
            pass
        return self._position

    def tell(self) -> int:
        return self._position

    def fileno(self) -> int:
        return self._file.fileno()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "DecompressedLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def _format(begin: bytes) -> Callable[[], Decompressor] | None:
    return next((decompressor for marks, decompressor in _FORMATS if begin.startswith(marks)), None)
