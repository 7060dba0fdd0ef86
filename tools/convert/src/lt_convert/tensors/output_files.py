"""The files that a conversion will write, and the content at each offset: decided before anything is written.

A format only returns such a list. So one writer serves all formats, a dry run is exact to the byte, files are written in
parallel, and after a kill the finished parts are known.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from lt_convert.tensors.block_fp8 import BlockFp8
from lt_convert.tensors.blocks import TensorReader, parts, row_blocks
from lt_convert.tensors.checksums import Piece
from lt_convert.tensors.tensor import Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class Payload:
    """A tensor's values, row-major; `name` is its name in the format that is written."""

    name: str
    tensor: Tensor | BlockFp8

    @property
    def size_bytes(self) -> int:
        return self.tensor.size_bytes

    @property
    def read(self) -> tuple[Tensor, ...]:
        """The tensors that are read to make it."""
        return (self.tensor.source if isinstance(self.tensor, BlockFp8) else self.tensor,)

    def contents(self, reader: TensorReader) -> Iterator[memoryview]:
        """Its bytes in order, a block at a time; each is overwritten by the next."""
        if isinstance(self.tensor, BlockFp8):
            yield from self.tensor.contents(reader)
            return
        for (tensor,) in parts(self.tensor):
            for start, stop in row_blocks(tensor):
                yield reader.rows(tensor, start, stop).reshape(-1).data.cast("B")


@dataclasses.dataclass(frozen=True)
class Summary:
    """Content that `content` makes from the pieces of the files before it; its size is known in advance."""

    size_bytes: int
    content: Callable[[Iterable[Piece]], bytes]


Segment = bytes | Payload | Summary


@dataclasses.dataclass(frozen=True)
class OutputFile:
    """A file: `name` relative to the destination, with "/" between directories, and its content from beginning to end.

    `objects` are the offsets where its objects begin and end, if readers load it object by object.
    """

    name: str
    segments: tuple[Segment, ...]
    objects: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(map(size_of, self.segments))

    @property
    def has_tensors(self) -> bool:
        return any(isinstance(segment, Payload) for segment in self.segments)

    def segments_at(self) -> Iterator[tuple[int, Segment]]:
        """Pairs of a segment's offset in the file, in bytes, and the segment."""
        offset = 0
        for segment in self.segments:
            yield offset, segment
            offset += size_of(segment)


def size_of(segment: Segment) -> int:
    return len(segment) if isinstance(segment, bytes) else segment.size_bytes


def views(outputs: Iterable[OutputFile]) -> Iterator[tuple[str, int, int]]:
    """Yield the source ranges of the outputs: (path, first byte, byte after the last) of every view."""
    for output in outputs:
        yield from views_of_segments(output.segments)


def views_of_segments(segments: Iterable[Segment]) -> Iterator[tuple[str, int, int]]:
    """Yield the source ranges of some segments, as `views`."""
    for segment in segments:
        for tensor in segment.read if isinstance(segment, Payload) else ():
            yield from _views(tensor)


def _views(tensor: Tensor) -> Iterator[tuple[str, int, int]]:
    for chunk in tensor.chunks:
        if chunk.view and all(chunk.view.shape):
            if scales := chunk.view.encoding and chunk.view.encoding.scales_read(chunk.view.shape):
                yield scales
            yield chunk.view.file, chunk.view.offset_bytes, chunk.view.end(tensor.stored_dtype)
