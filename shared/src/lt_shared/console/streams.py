"""Standard streams that write a text completely or raise.

With PYTHONUNBUFFERED=1 or `python -u`, Python calls write(2) once for each text. If the disk becomes full or the file reaches its
size limit, write(2) accepts a part without an error, and Python drops the remainder.
"""

import io
import select
from collections.abc import Callable
from typing import IO, Any, TextIO


class WholeWriter(io.FileIO):
    """A file descriptor whose `write` returns after the last byte is written."""

    def write(self, content: Any, /) -> int:
        view = memoryview(content).cast("B")
        _write_parts(self, super().write, view)
        return len(view)


def whole(stream: TextIO, errors: str) -> TextIO:
    """Wrap an unbuffered `stream` so that it writes each text completely; return a buffered stream unchanged."""
    if not (isinstance(stream, io.TextIOWrapper) and isinstance(stream.buffer, io.FileIO)):
        return stream
    stream.flush()
    return io.TextIOWrapper(WholeWriter(stream.fileno(), "w", closefd=False), "utf-8", errors, write_through=True)


def write_all(stream: IO[bytes], content: bytes) -> None:
    """Write `content` completely, also to a raw stream, which may accept a part per call."""
    if isinstance(stream, io.RawIOBase):
        _write_parts(stream, stream.write, memoryview(content))
    else:
        stream.write(content)


def _write_parts(stream: IO[bytes] | io.RawIOBase, write: Callable[[memoryview], int | None], view: memoryview) -> None:
    """Call `write`, a bound method of `stream`, until it has accepted every byte of `view`."""
    while view:
        count = write(view)
        if count is None:
            # A non-blocking pipe is full: wait until its reader has made room.
            select.select([], [stream], [])
        view = view[count or 0 :]
