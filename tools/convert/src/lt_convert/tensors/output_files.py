"""The files that a conversion will write, and what is at which offset in them: decided before anything is written.

A format only returns such a list. So one writer serves all formats, a dry run is exact to the byte, files are written in
parallel, and after a kill it is known what has been written.
"""

import dataclasses
from collections.abc import Iterator

from lt_convert.tensors.tensor import Tensor


@dataclasses.dataclass(frozen=True)
class Payload:
    """A tensor's values, row-major; `name` is its name in the format that is written."""

    name: str
    tensor: Tensor

    @property
    def size_bytes(self) -> int:
        return self.tensor.size_bytes


@dataclasses.dataclass(frozen=True)
class OutputFile:
    """A file: `name` relative to the destination, with "/" between directories, and its content from beginning to end."""

    name: str
    segments: tuple[bytes | Payload, ...]

    @property
    def size_bytes(self) -> int:
        return sum(map(size_of, self.segments))

    @property
    def has_tensors(self) -> bool:
        return any(isinstance(segment, Payload) for segment in self.segments)

    def segments_at(self) -> Iterator[tuple[int, bytes | Payload]]:
        """Pairs of a segment's offset in the file, in bytes, and the segment."""
        offset = 0
        for segment in self.segments:
            yield offset, segment
            offset += size_of(segment)


def size_of(segment: bytes | Payload) -> int:
    return len(segment) if isinstance(segment, bytes) else segment.size_bytes
