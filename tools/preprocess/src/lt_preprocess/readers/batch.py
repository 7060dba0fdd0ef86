"""A chunk's documents, one column per key, and the lines without a document.

A document is a string, or a list of strings whose items become separate sequences. A line without a document for one key is left
out for all keys, so that the keys' datasets have the same documents.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lt_preprocess.texts import Lengths, Texts


class Column(NamedTuple):
    """What one key holds. `texts` leaves empty ones out; `texts_per_document` is int64 [documents]."""

    texts: Texts
    texts_per_document: Lengths


class BadLine(NamedTuple):
    """A line that holds no document for some key.

    `source` is the input as messages name it; `offset` is in bytes of the decompressed content, or for Parquet the row from 0;
    `raw` is the line without its line break.
    """

    source: str
    offset: int
    reason: str
    raw: bytes
    line_number: Callable[[], int | None]
    is_row: bool = False

    @property
    def line(self) -> int | None:
        """The number of the line from 1, None where it is not known (a remote file).

        In a plain file the lines before it are counted, which takes a moment.
        """
        return self.line_number()

    def __str__(self) -> str:
        if self.is_row:
            return f"{self.source}, row {self.line}: {self.reason}"
        return f"{location(self.source, self.line, self.offset)}: {self.reason}"


class ChunkLines(NamedTuple):
    """Which of the `total` lines of a chunk have a document: all but those `left_out`, ascending numbers from 0 in the chunk.

    The first line begins at byte `offset` of the decompressed content. Rows of Parquet files count as lines, a text as one.
    """

    offset: int
    total: int
    left_out: Sequence[int]

    def of_documents(self) -> Lengths:
        """Return the line number in the chunk, from 0, of each document."""
        return np.delete(np.arange(self.total), self.left_out)

    def runs(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the first (document, line), from 0, of each run of documents `first` to before `last` on consecutive lines."""
        if first == last or not self.left_out:
            return [(first, first)] if first < last else []
        lines = self.of_documents()[first:last]
        begins = np.flatnonzero(np.diff(lines, prepend=-2) != 1)
        return list(zip((begins + first).tolist(), lines[begins].tolist(), strict=True))

    def without(self, documents: Iterable[int]) -> "ChunkLines":
        """Also exclude the lines of `documents`."""
        removed_lines = self.of_documents()[list(documents)]
        return self._replace(left_out=sorted([*self.left_out, *removed_lines.tolist()]))


class Batch(NamedTuple):
    """A chunk's documents, in order: one column per key, with equal numbers of documents."""

    columns: list[Column]
    bad_lines: list[BadLine]
    lines: ChunkLines


def location(source: str, line: int | None, offset: int) -> str:
    """Return a line's location for messages: its number, if known, and the offset of its first byte."""
    return f"{source}{'' if line is None else f', line {line}'}, byte {offset}"
