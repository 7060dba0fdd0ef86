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

from lt_preprocess.pipeline.assembly import Documents, assemble
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

    @property
    def documents(self) -> int:
        return len(self.columns[0].sequences_per_document)


def _encode(chunk: Chunk, json_keys: tuple[str, ...], encoder: Encoder, eod: int | None, dtype: np.dtype[Any]) -> Encoded:
    batch = without_forbidden(chunk, chunk.batch(json_keys), json_keys, encoder)
    columns = []
    for texts, texts_per_document in batch.columns:
        ids, text_lengths = encoder.encode(texts)
        columns.append(assemble(ids, text_lengths, texts_per_document, eod, dtype))
    text_bytes = sum(int(texts.offsets[-1]) for texts, _ in batch.columns)
    return Encoded(columns, text_bytes, batch.bad_lines, chunk.end, batch.lines, chunk.kind)


def encode(
    chunks: Iterable[Chunk], encoders: Sequence[Encoder], json_keys: tuple[str, ...], eod: int | None, dtype: np.dtype[Any]
) -> Generator[Encoded, None, None]:
    """Encode chunks on one thread per encoder; yields one result per chunk, in order."""
    idle: queue.SimpleQueue[Encoder] = queue.SimpleQueue()
    for encoder in encoders:
        idle.put(encoder)

    def work(chunk: Chunk) -> Encoded:
        encoder = idle.get()
        try:
            return _encode(chunk, json_keys, encoder, eod, dtype)
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
