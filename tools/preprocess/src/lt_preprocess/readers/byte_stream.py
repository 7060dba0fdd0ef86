"""Read content forwards that arrives in pieces: from a pipe, a compressed file or a store."""

import itertools
from collections.abc import Iterator
from typing import Self

READ_BYTES = 1 << 18


class ByteStream:
    """`offset` is the number of bytes that were read."""

    def __init__(self, pieces: Iterator[bytes]):
        self._pieces = pieces
        self._piece = b""
        self._at = 0
        self.offset = 0

    def read(self, size: int) -> bytes:
        """Read `size` bytes, fewer only at the end of the content."""
        parts = []
        while size > 0 and self._fill():
            part = self._piece[self._at : self._at + size]
            parts.append(part)
            self._at += len(part)
            self.offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip(self, size: int) -> int:
        """Pass over `size` bytes without keeping them; returns how many there were."""
        skipped = 0
        while skipped < size and self._fill():
            step = min(size - skipped, len(self._piece) - self._at)
            self._at += step
            skipped += step
        self.offset += skipped
        return skipped

    def readline(self, longest: int) -> bytes:
        """Read to the end of the line and its line feed, or `longest` bytes of a longer line."""
        parts: list[bytes] = []
        size = 0
        while size < longest and self._fill():
            end = self._piece.find(b"\n", self._at, self._at + longest - size) + 1
            part = self._piece[self._at : end or self._at + longest - size]
            parts.append(part)
            self._at += len(part)
            size += len(part)
            if end:
                break
        self.offset += size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fill(self) -> bool:
        """Go on to the next piece if this one is used up. False at the end of the content."""
        while self._at == len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._piece, self._at = piece, 0
        return True

    def preceded_by(self, start: bytes) -> Self:
        """Return a stream of `start` and the content that was not read yet."""
        return type(self)(itertools.chain([start], iter(lambda: self.read(READ_BYTES), b"")))
