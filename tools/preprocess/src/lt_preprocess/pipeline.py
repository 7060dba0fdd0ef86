"""Documents to token ids on several threads, in the order of the input.

The calling thread reads blocks and hands results out in order; worker threads parse and encode. Parsing holds the GIL (about 2 ms
a block of 1 MiB), encoding does not (20 ms and more), so ten threads and more keep busy. At most two blocks a thread are in
flight: memory does not grow with the input, and the output does not depend on the number of threads.
"""

import collections
import contextlib
import dataclasses
import queue
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from lt_preprocess import documents
from lt_preprocess.chunks import Chunk
from lt_preprocess.tokenizer import Encoder, Ids, Lengths

BLOCKS_IN_FLIGHT_PER_WORKER = 2


@dataclasses.dataclass(frozen=True)
class Encoded:
    """The documents of one block, as `indexed_dataset.Writer.append` takes them.

    `tokens` [sum(sequence_lengths)] has the dataset's dtype; a document may have no sequence. `text_bytes` counts UTF-8.
    """

    tokens: npt.NDArray[np.generic]
    sequence_lengths: Lengths
    sequences_per_document: Lengths
    text_bytes: int
    bad_lines: list[documents.BadLine]


def assemble(ids: Ids, text_lengths: Lengths, texts_per_document: Lengths, eod: int | None) -> tuple[Ids, Lengths, Lengths]:
    """Make documents as Megatron's preprocess_data.py does: tokens, sequence lengths, sequences per document.

    A text without tokens is no sequence. `eod`, if given, is appended to the last sequence of a document; a document without
    sequences gets none.
    """
    document_of_text = np.repeat(np.arange(len(texts_per_document)), texts_per_document)
    is_sequence = text_lengths > 0
    lengths, document_of_sequence = text_lengths[is_sequence], document_of_text[is_sequence]
    sequences = np.bincount(document_of_sequence, minlength=len(texts_per_document))
    if eod is not None:
        last = np.append(np.diff(document_of_sequence) != 0, True)[: len(lengths)]
        ids = np.insert(ids, np.cumsum(lengths)[last], eod)
        lengths = lengths + last
    return ids, lengths, sequences


def _encode(chunk: Chunk, json_key: str, encoder: Encoder, eod: int | None, dtype: np.dtype[Any]) -> Encoded:
    found = documents.batch(chunk, (json_key,))
    texts, texts_per_document = found.columns[0]
    ids, text_lengths = encoder.encode(texts)
    tokens, lengths, sequences = assemble(ids, text_lengths, texts_per_document, eod)
    return Encoded(tokens.astype(dtype), lengths, sequences, int(texts.offsets[-1]), found.bad_lines)


def encode(
    blocks: Iterable[Chunk], encoders: Sequence[Encoder], json_key: str, eod: int | None, dtype: np.dtype[Any]
) -> Generator[Encoded, None, None]:
    """Encode blocks on one thread per encoder; yields one result per block, in order."""
    idle: queue.SimpleQueue[Encoder] = queue.SimpleQueue()
    for encoder in encoders:
        idle.put(encoder)

    def work(block: Chunk) -> Encoded:
        encoder = idle.get()
        try:
            return _encode(block, json_key, encoder, eod, dtype)
        finally:
            idle.put(encoder)

    with contextlib.ExitStack() as stack:
        pool = ThreadPoolExecutor(len(encoders), thread_name_prefix="encode")
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        pending: collections.deque[Future[Encoded]] = collections.deque()
        for block in blocks:
            pending.append(pool.submit(work, block))
            if len(pending) >= BLOCKS_IN_FLIGHT_PER_WORKER * len(encoders):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
