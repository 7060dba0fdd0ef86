"""Documents to token ids on several threads, in the order of the input.

The calling thread makes chunks and hands results out in order; worker threads parse, encode and assemble, without the GIL where
the tokenizer is compiled. At most two chunks a thread are in flight: memory does not grow with the input, and the output does not
depend on the number of threads.
"""

import collections
import contextlib
import dataclasses
import functools
import queue
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lt_preprocess.curation.documents import LineStarts, with_line_starts
from lt_preprocess.documents.assembly import Documents
from lt_preprocess.documents.recipe import Recipe
from lt_preprocess.pipeline.removals import NOTHING_REMOVED, Removed, curate, curate_by_tokens
from lt_preprocess.readers.batch import BadLine, ChunkLines
from lt_preprocess.readers.chunks import Chunk, Position
from lt_preprocess.readers.jsonl import LinesChunk
from lt_preprocess.readers.records import RowChunk
from lt_preprocess.tokenizers.base import Encoder
from lt_shared.data.document_origins.origins import Kind

if TYPE_CHECKING:
    from lt_preprocess.curation.curator import Curator

CHUNKS_IN_FLIGHT_PER_WORKER = 2


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A chunk's encoded documents: one column per key, with equal numbers of documents.

    `text_bytes` is the size in UTF-8; `end` is the position after the chunk; `lines` are the lines of its input. `sources` are
    the documents in the input that the documents were cut from, None if none was cut; `empty_fields` as in `Batch`. `loss_mask`
    has 1 for each token of the one column that counts in the loss, else 0, if the documents are conversations.
    """

    columns: list[Documents]
    text_bytes: int
    bad_lines: list[BadLine]
    end: Position
    lines: ChunkLines
    kind: Kind
    offset_of_line: Callable[[int], int]
    removed: Removed = NOTHING_REMOVED
    sources: npt.NDArray[np.int64] | None = None
    empty_fields: npt.NDArray[np.bool_] | None = None
    loss_mask: Documents | None = None

    @property
    def outputs(self) -> list[Documents]:
        """The documents of every dataset that is written, in the order of `Plan.output_prefixes`."""
        return self.columns if self.loss_mask is None else [self.loss_mask, *self.columns]

    @property
    def documents(self) -> int:
        return len(self.columns[0].sequences_per_document)

    @property
    def input_documents(self) -> int:
        """The documents in the input, before they were cut."""
        return self.documents if self.sources is None else self.lines.total - len(self.lines.left_out)

    @property
    def tokens(self) -> int:
        """The tokens in every column, summed."""
        return sum(len(column.tokens) for column in self.columns)

    def runs(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return where the documents `first` to before `last` begin a run on consecutive lines: (document, line), from 0."""
        if first == last or (not self.lines.left_out and self.sources is None):
            return [(first, first)] if first < last else []
        lines = self.lines.of_documents()
        lines = (lines if self.sources is None else lines[self.sources])[first:last]
        begins = np.flatnonzero(np.diff(lines, prepend=-2) != 1)
        return list(zip((begins + first).tolist(), lines[begins].tolist(), strict=True))

    def line_of(self, document: int) -> int:
        """Return the line of a document, from 0; the number of lines if the chunk has fewer documents, 0 for the first one."""
        if document == 0:
            return 0
        if document >= self.documents:
            return self.lines.total
        return int(self.lines.of_documents()[document if self.sources is None else self.sources[document]])

    def excluded(self, first_line: int, last_line: int | None) -> tuple[list[BadLine], Removed]:
        """The bad lines and the removed documents on the lines `first_line` to before `last_line`, None for the chunk's end."""
        if first_line == 0 and last_line is None:
            return self.bad_lines, self.removed
        begin, end = (None if line is None else self.offset_of_line(line) for line in (first_line, last_line))
        bad_lines = [bad for bad in self.bad_lines if bad.offset >= (begin or 0) and (end is None or bad.offset < end)]
        return bad_lines, self.removed.between(first_line, last_line)

    def within(self, input_documents: int | None, tokens: int | None) -> "Encoded":
        """The first documents of the input, at most so many, that have at most so many tokens, and the lines up to the last.

        The lines behind the last document are left out, so that the result does not depend on the bounds of chunks.
        """
        ends = self._ends()
        count = len(ends) - 1 if input_documents is None else min(input_documents, len(ends) - 1)
        if tokens is not None:
            tokens_before = sum(column.tokens_before(ends) for column in self.columns)
            count = min(count, int(np.searchsorted(tokens_before, tokens, side="right")) - 1)
        if count == len(ends) - 1 and count != input_documents:
            return self
        last = int(ends[count])
        line = int(self.lines.of_documents()[count - 1]) + 1 if count else 0
        offset = None if line == self.lines.total else self.offset_of_line(line)
        return dataclasses.replace(
            self,
            columns=[column.before(last) for column in self.columns],
            bad_lines=[bad for bad in self.bad_lines if offset is None or bad.offset < offset],
            lines=self.lines.before(line),
            removed=self.removed.between(0, line),
            sources=None if self.sources is None else self.sources[:last],
            empty_fields=None if self.empty_fields is None else self.empty_fields[:count],
            loss_mask=None if self.loss_mask is None else self.loss_mask.before(last),
        )

    def _ends(self) -> npt.NDArray[np.int64]:
        """How many documents precede an input document, for all input documents and for their end."""
        if self.sources is None:
            return np.arange(self.documents + 1)
        return np.searchsorted(self.sources, np.arange(self.input_documents + 1))


def _encode(chunk: Chunk, recipe: Recipe, encoder: Encoder, curator: "Curator | None") -> Encoded:
    line_starts = LineStarts()
    if curator is not None and curator.needs_positions:
        chunk, line_starts = with_line_starts(chunk)
    batch = recipe.batch(chunk, encoder)
    removed = NOTHING_REMOVED
    if curator is not None:
        batch, removed = curate(chunk, batch, recipe.text_keys, curator, line_starts)
    encoded = [recipe.form.encode(texts, encoder) for texts, _ in batch.columns]
    if curator is not None and curator.has_token_limits:
        batch, encoded, removed = curate_by_tokens(chunk, batch, encoded, recipe.text_keys, curator, removed)
    formed = [
        recipe.form.assemble(ids, text_lengths, texts_per_document)
        for (ids, text_lengths), (_, texts_per_document) in zip(encoded, batch.columns, strict=True)
    ]
    loss_mask = None
    if recipe.loss_mask is not None and batch.counted is not None:
        loss_mask = recipe.loss_mask.assemble(batch.columns[0], batch.counted, *encoded[0], encoder)
    return Encoded(
        [documents for documents, _ in formed],
        sum(int(texts.offsets[-1]) for texts, _ in batch.columns),
        batch.bad_lines,
        chunk.end,
        batch.lines,
        chunk.kind,
        functools.partial(_offset_of_line, chunk),
        removed,
        formed[0].sources,
        batch.empty_fields,
        loss_mask,
    )


def _offset_of_line(chunk: Chunk, line: int) -> int:
    """The offset that a bad line with this number in the chunk, from 0, would have."""
    if isinstance(chunk, LinesChunk):
        lines = chunk.read()
        breaks = np.flatnonzero(lines.data[lines.start : lines.end] == ord("\n"))
        return lines.offset + (int(breaks[line - 1]) + 1 if line else 0)
    return chunk.first_row + line if isinstance(chunk, RowChunk) else line


def encode(
    chunks: Iterable[Chunk], encoders: Sequence[Encoder], recipe: Recipe, curator: "Curator | None" = None
) -> Generator[Encoded, None, None]:
    """Encode chunks on one thread per encoder; yields one result per chunk, in order. `curator` removes documents."""
    idle: queue.SimpleQueue[Encoder] = queue.SimpleQueue()
    for encoder in encoders:
        idle.put(encoder)

    def work(chunk: Chunk) -> Encoded:
        encoder = idle.get()
        try:
            return _encode(chunk, recipe, encoder, curator)
        finally:
            idle.put(encoder)

    with contextlib.ExitStack() as stack:
        pool = ThreadPoolExecutor(len(encoders), thread_name_prefix="encode")
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        pending: collections.deque[Future[Encoded]] = collections.deque()
        for chunk in chunks:
            pending.append(pool.submit(work, chunk))
            if len(pending) >= CHUNKS_IN_FLIGHT_PER_WORKER * len(encoders):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
