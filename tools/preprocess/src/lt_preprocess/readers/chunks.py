"""Chunks: the units of work that the reading thread passes to the worker threads that encode.

A chunk is about 1 MiB of whole lines, or rows of a Parquet file, or one plain text. An uncompressed file of lines is cut by
arithmetic alone: a chunk owns the lines whose first byte lies between its two offsets, and the worker reads them, so that no
single thread has to read all bytes. Everything else is read by the thread that makes the chunks.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lt_preprocess.readers.batch import Batch, location
from lt_preprocess.texts import PADDING_BYTES
from lt_shared.console import BadData
from lt_shared.data.document_origins.origins import Kind

Bytes = npt.NDArray[np.uint8]

CHUNK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 30
MARGIN_BYTES = 64
"""Bytes before the first line that compiled code may read."""


class Position(NamedTuple):
    """A position in the inputs where reading resumes.

    `input`: index into the list of inputs; `offset`: bytes of the decompressed content, rows of a Parquet file; `line`: the
    number of the next line from 1, or 0 if earlier lines were not counted (a file that is read at offsets).
    """

    input: int = 0
    offset: int = 0
    line: int = 1


BEGINNING = Position()


class Lines(NamedTuple):
    """Whole lines in memory: data[start:end]; its first byte is at `offset` of the content.

    `data` is uint8 with MARGIN_BYTES before `start` and PADDING_BYTES after `end` that may be read. `first_line` returns the
    number of the first line, which may take a while, or None if it is unknown.
    """

    data: Bytes
    start: int
    end: int
    offset: int
    first_line: Callable[[], int | None]

    @classmethod
    def of(cls, content: bytes, offset: int = 0, line: int = 1) -> Self:
        data = np.frombuffer(bytearray().join((bytes(MARGIN_BYTES), content, bytes(PADDING_BYTES))), np.uint8)
        return cls(data, MARGIN_BYTES, MARGIN_BYTES + len(content), offset, lambda: line or None)

    def numbered(self, lines_before: int) -> Callable[[], int | None]:
        """Return a function for the number of the line after `lines_before` lines, which may take a while to know."""

        def line_number() -> int | None:
            first = self.first_line()
            return None if first is None else first + lines_before

        return line_number


@dataclasses.dataclass(frozen=True)
class Chunk(abc.ABC):
    """`source` is the input as messages name it; the next chunk begins at `end`."""

    source: str
    end: Position

    kind: ClassVar[Kind] = "line"
    """What a document of the chunk is in its file."""

    @abc.abstractmethod
    def batch(self, json_keys: tuple[str, ...]) -> Batch:
        """Parse the chunk; called by a worker."""


def line_too_long(source: str, line: int | None, offset: int) -> BadData:
    return BadData(f"{location(source, line, offset)}: a line of more than {LONGEST_LINE_BYTES >> 30} GiB", "is this JSON lines?")
