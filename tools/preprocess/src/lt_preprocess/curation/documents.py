"""The documents of a batch: one text for each, and the position in the input: the first byte of its line, or its row.

Chunks, shards and workers do not change positions.
"""

import numpy as np

from lt_preprocess.readers.batch import Batch, ChunkLines
from lt_preprocess.readers.chunks import Chunk
from lt_preprocess.readers.jsonl import LinesChunk, MemoryChunk
from lt_preprocess.texts import Lengths, Texts

_LINE_FEED = 10


class LineStarts:
    """The first bytes of the lines of a chunk; of a chunk of rows, nothing is stored."""

    def __init__(self, starts: Lengths | None = None):
        self._starts = starts

    def of_documents(self, lines: ChunkLines) -> Lengths:
        """Return the positions of the documents on `lines`, int64 [documents], ascending."""
        numbers = lines.of_documents()
        return lines.offset + numbers if self._starts is None else self._starts[numbers]


def with_line_starts(chunk: Chunk) -> tuple[Chunk, LineStarts]:
    """Find where the lines of a chunk begin; also return the chunk with its lines in memory, so that they are read once."""
    if not isinstance(chunk, LinesChunk):
        return chunk, LineStarts()
    lines = chunk.read()
    breaks = np.flatnonzero(lines.data[lines.start : lines.end] == _LINE_FEED)
    line_starts = LineStarts(lines.offset + np.concatenate([[0], breaks + 1]))
    return MemoryChunk(chunk.source, chunk.end, lines, is_text=chunk.is_text), line_starts


def document_texts(batch: Batch) -> Texts:
    """Return one text for each document of a batch."""
    [first, *others] = batch.columns
    if not others and (first.texts_per_document == 1).all():
        return first.texts
    texts_by_document: list[list[bytes]] = [[] for _ in first.texts_per_document]
    for column in batch.columns:
        texts = iter(column.texts.to_list())
        for document, count in enumerate(column.texts_per_document.tolist()):
            texts_by_document[document] += [next(texts) for _ in range(count)]
    return Texts.from_list([b"\n".join(texts) for texts in texts_by_document])
