"""Standard streams that take all of what is written, or raise.

With PYTHONUNBUFFERED=1 or `python -u`, Python passes each text to the operating system once. A disk that becomes full, or a limit
on the size of a file, takes a part of it without an error, and Python drops the rest.
"""

import io
import select
from collections.abc import Callable
from typing import IO, Any, TextIO


class WholeWriter(io.FileIO):
    """A file descriptor whose `write` returns when all is written."""

    def write(self, content: Any, /) -> int:
        view = memoryview(content).cast("B")
        _write_parts(self, super().write, view)
        return len(view)


def whole(stream: TextIO, errors: str) -> TextIO:
    """An unbuffered `stream` as one that takes all of each text; any other stream as it is."""
    if not (isinstance(stream, io.TextIOWrapper) and isinstance(stream.buffer, io.FileIO)):
        return stream
    stream.flush()
    return io.TextIOWrapper(WholeWriter(stream.fileno(), "w", closefd=False), "utf-8", errors, write_through=True)


def write_all(stream: IO[bytes], content: bytes) -> None:
    """Write all of `content`; a raw stream may take a part of it at a time."""
    if isinstance(stream, io.RawIOBase):
        _write_parts(stream, stream.write, memoryview(content))
    else:
        stream.write(content)


def _write_parts(stream: IO[bytes] | io.RawIOBase, write: Callable[[memoryview], int | None], view: memoryview) -> None:
    """Call `write`, the write of `stream`, until it has taken all of `view`."""
    while view:
        count = write(view)
        if count is None:
            # The other end of a pipe that does not block has not read yet.
            select.select([], [stream], [])
        view = view[count or 0 :]
