"""Chunks of JSON lines: subclasses say how the lines are read, `json_batch` parses them all in the same way."""

import abc
import dataclasses
from typing import Self

from lt_preprocess.readers.batch import Batch
from lt_preprocess.readers.chunks import BEGINNING, Chunk, Lines, Position


@dataclasses.dataclass(frozen=True)
class LinesChunk(Chunk):
    """JSON lines."""

    @abc.abstractmethod
    def read(self) -> Lines:
        """Called by a worker, once."""

    def batch(self, json_keys: tuple[str, ...]) -> Batch:
        from lt_preprocess.readers.json_batch import json_lines

        return json_lines(self.read(), self.source, json_keys)


@dataclasses.dataclass(frozen=True)
class MemoryChunk(LinesChunk):
    """Lines that were read already."""

    lines: Lines

    @classmethod
    def of(cls, source: str, lines: bytes, start: Position = BEGINNING) -> Self:
        end = Position(start.input, start.offset + len(lines), start.line + lines.count(b"\n") if start.line else 0)
        return cls(source, end, Lines.of(lines, start.offset, start.line))

    def read(self) -> Lines:
        return self.lines
