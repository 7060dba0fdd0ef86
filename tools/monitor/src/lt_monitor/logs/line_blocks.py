"""Cut a stream into blocks of whole lines.

A carriage return ends a line like a newline, because progress bars rewrite one line for hours. If a file does not end with a line
end, its last line is still being written and waits for the next pass; the end of standard input is final.
"""

import io
import os
from collections.abc import Callable, Iterator
from typing import IO

BLOCK_BYTES = 1 << 21
LINE_LIMIT_BYTES = 1 << 22
# Most lines are shorter.
LINE_BYTES = 1 << 12


def whole_lines(log: IO[bytes]) -> Callable[[int], bytes]:
    """Return a function that reads like `log.read`, and up to a newline if there is one near the end: no byte is copied then."""
    if not isinstance(log, io.BufferedReader) or not log.seekable():
        return log.read

    def read(size: int) -> bytes:
        position = log.tell()
        try:
            tail = os.pread(log.fileno(), LINE_BYTES, position + size - LINE_BYTES)
        except OSError:
            tail = b""
        newline = tail.rfind(b"\n") if len(tail) == LINE_BYTES else -1
        return log.read(size if newline < 0 else size - LINE_BYTES + newline + 1)

    return read


def blocks(read: Callable[[int], bytes], final: bool = False) -> Iterator[bytes]:
    """Yield blocks of whole lines, one per read that completes a line. `final`: the end of the input ends a line.

    A line longer than LINE_LIMIT_BYTES is yielded in pieces to bound the memory; no event is that long.
    """
    pending = b""
    while data := read(BLOCK_BYTES):
        # A carriage return matters only behind the last newline.
        newline = data.rfind(b"\n")
        end = max(newline, data.rfind(b"\r", newline + 1)) + 1
        if end == len(data) and not pending:
            yield data
        elif end:
            yield b"".join((pending, memoryview(data)[:end]))
            pending = data[end:]
        else:
            pending += data
            if len(pending) > LINE_LIMIT_BYTES:
                yield pending
                pending = b""
    if final and pending:
        yield pending
