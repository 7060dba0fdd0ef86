"""Documents to token ids on several threads, in the order of the input.

The calling thread makes chunks and hands results out in order; worker threads parse, encode and assemble, without the GIL where
the tokenizer is compiled. At most two chunks a thread are in flight: memory does not grow with the input, and the output does not
depend on the number of threads.
"""

import collections
import contextlib
import dataclasses
import queue
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from lt_preprocess.curation.rules import Curator
from lt_preprocess.pipeline.assembly import Documents, assemble
from lt_preprocess.pipeline.removals import NOTHING_REMOVED, Removed, curate, curate_by_tokens
from lt_preprocess.pipeline.special_token_filter import without_forbidden
from lt_preprocess.readers.batch import BadLine, ChunkLines
from lt_preprocess.readers.chunks import Chunk, Position
from lt_preprocess.tokenizers.base import Encoder
from lt_shared.data.document_origins.origins import Kind

CHUNKS_IN_FLIGHT_PER_WORKER = 2


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A chunk's encoded documents: one column per key, with equal numbers of documents.

    `text_bytes` is the size in UTF-8; `end` is the position after the chunk; `lines` are the documents' lines.
    """

    columns: list[Documents]
    text_bytes: int
    bad_lines: list[BadLine]
    end: Position
    lines: ChunkLines
    kind: Kind
    removed: Removed = NOTHING_REMOVED

    @property
    def documents(self) -> int:
        return len(self.columns[0].sequences_per_document)


def _encode(
    chunk: Chunk,
    json_keys: tuple[str, ...],
    encoder: Encoder,
    eod: int | None,
    dtype: np.dtype[Any],
    curator: Curator | None,
) -> Encoded:
    batch = without_forbidden(chunk, chunk.batch(json_keys), json_keys, encoder)
    removed = NOTHING_REMOVED
    if curator is not None:
        batch, removed = curate(chunk, batch, json_keys, curator)
    encoded = [encoder.encode(texts) for texts, _ in batch.columns]
    if curator is not None and curator.has_token_limits:
        batch, encoded, removed = curate_by_tokens(chunk, batch, encoded, json_keys, curator, removed)
    columns = [
        assemble(ids, text_lengths, texts_per_document, eod, dtype)
        for (ids, text_lengths), (_, texts_per_document) in zip(encoded, batch.columns, strict=True)
    ]
    text_bytes = sum(int(texts.offsets[-1]) for texts, _ in batch.columns)
    return Encoded(columns, text_bytes, batch.bad_lines, chunk.end, batch.lines, chunk.kind, removed)


def encode(
    chunks: Iterable[Chunk],
    encoders: Sequence[Encoder],
    json_keys: tuple[str, ...],
    eod: int | None,
    dtype: np.dtype[Any],
    curator: Curator | None = None,
) -> Generator[Encoded, None, None]:
    """Encode chunks on one thread per encoder; yields one result per chunk, in order. `curator` removes documents."""
    idle: queue.SimpleQueue[Encoder] = queue.SimpleQueue()
    for encoder in encoders:
        idle.put(encoder)

    def work(chunk: Chunk) -> Encoded:
        encoder = idle.get()
        try:
            return _encode(chunk, json_keys, encoder, eod, dtype, curator)
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
