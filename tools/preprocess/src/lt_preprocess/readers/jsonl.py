"""Chunks of lines: subclasses say how the lines are read; `json_batch`, or `text_lines`, parses them all in the same way."""

import abc
import dataclasses
from typing import Self

from lt_preprocess.readers.batch import Batch
from lt_preprocess.readers.chunks import BEGINNING, Chunk, Lines, Position


@dataclasses.dataclass(frozen=True)
class LinesChunk(Chunk):
    """JSON lines, or lines of plain text."""

    is_text: bool = dataclasses.field(default=False, kw_only=True)

    @abc.abstractmethod
    def read(self) -> Lines:
        """Called by a worker, once."""

    def batch(self, json_keys: tuple[str, ...]) -> Batch:
        if self.is_text:
            from lt_preprocess.readers.text_lines import text_lines

            return text_lines(self.read(), self.source)
        from lt_preprocess.readers.json_batch import json_lines

        return json_lines(self.read(), self.source, json_keys)


@dataclasses.dataclass(frozen=True)
class MemoryChunk(LinesChunk):
    """Lines that were read already."""

    lines: Lines

    @classmethod
    def of(cls, source: str, lines: bytes, start: Position = BEGINNING, is_text: bool = False) -> Self:
        end = Position(start.input, start.offset + len(lines), start.line + lines.count(b"\n") if start.line else 0)
        return cls(source, end, Lines.of(lines, start.offset, start.line), is_text=is_text)

    def read(self) -> Lines:
        return self.lines
