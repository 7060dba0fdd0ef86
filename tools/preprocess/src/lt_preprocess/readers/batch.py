"""A chunk's documents, one column per key, and the lines without a document.

A document is a string, or a list of strings whose items become separate sequences. A line without a document for one key is left
out for all keys, so that the keys' datasets have the same documents.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.texts import Lengths, Texts


class Column(NamedTuple):
    """What one key holds. `texts` leaves empty ones out; `texts_per_document` is int64 [documents]."""

    texts: Texts
    texts_per_document: Lengths

    def without(self, is_excluded: npt.NDArray[np.bool_]) -> "Column":
        """Copy the documents except those that `is_excluded` [documents] marks."""
        texts = np.flatnonzero(np.repeat(is_excluded, self.texts_per_document))
        return Column(self.texts.without(texts.tolist()), self.texts_per_document[~is_excluded])


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

    def without(self, documents: Iterable[int]) -> "ChunkLines":
        """Also exclude the lines of `documents`."""
        removed_lines = self.of_documents()[list(documents)]
        return self._replace(left_out=sorted([*self.left_out, *removed_lines.tolist()]))

    def before(self, line: int) -> "ChunkLines":
        """The first `line` lines."""
        return ChunkLines(self.offset, line, [number for number in self.left_out if number < line])


class Batch(NamedTuple):
    """A chunk's documents, in order: one column per key, with equal numbers of documents.

    `empty_fields` bool [documents, optional fields of the template]: which fields a document does not fill, if there is a
    template. `counted` has for each document, a conversation, the bounds in bytes of the parts that count in the loss, int64
    [parts, 2].
    """

    columns: list[Column]
    bad_lines: list[BadLine]
    lines: ChunkLines
    empty_fields: npt.NDArray[np.bool_] | None = None
    counted: Sequence[npt.NDArray[np.int64]] | None = None

    def without(self, documents: Collection[int]) -> "Batch":
        """Copy the batch except for some documents and their lines."""
        is_excluded = np.zeros(len(self.columns[0].texts_per_document), np.bool_)
        is_excluded[list(documents)] = True
        return Batch(
            [column.without(is_excluded) for column in self.columns],
            self.bad_lines,
            self.lines.without(documents),
            None if self.empty_fields is None else self.empty_fields[~is_excluded],
            None
            if self.counted is None
            else [bounds for bounds, left_out in zip(self.counted, is_excluded.tolist(), strict=True) if not left_out],
        )


def location(source: str, line: int | None, offset: int) -> str:
    """Return a line's location for messages: its number, if known, and the offset of its first byte."""
    return f"{source}{'' if line is None else f', line {line}'}, byte {offset}"
