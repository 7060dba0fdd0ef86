"""Documents are assembled as Megatron's preprocess_data.py assembles them, in order, whatever the number of threads."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_preprocess import pipeline
from lt_preprocess.chunks import Chunk, MemoryChunk
from lt_preprocess.tokenizer import Encoder, Ids, Lengths, Texts

EOD = 999


def megatron_documents(documents: list[list[list[int]]], eod: int | None) -> tuple[list[int], list[int], list[int]]:
    """The rule of preprocess_data.py's Encoder.encode, one document after the other."""
    tokens: list[int] = []
    lengths: list[int] = []
    sequences: list[int] = []
    for texts in documents:
        document_lengths = [len(ids) for ids in texts if ids]
        tokens.extend(number for ids in texts for number in ids)
        if document_lengths and eod is not None:
            tokens.append(eod)
            document_lengths[-1] += 1
        lengths.extend(document_lengths)
        sequences.append(len(document_lengths))
    return tokens, lengths, sequences


@given(
    st.lists(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=4), max_size=8),
    st.sampled_from([None, EOD]),
)
def test_assemble(documents: list[list[list[int]]], eod: int | None) -> None:
    texts = [ids for document in documents for ids in document]
    tokens, lengths, sequences = pipeline.assemble(
        np.array([number for ids in texts for number in ids], np.int32),
        np.array([len(ids) for ids in texts], np.int64),
        np.array([len(document) for document in documents], np.int64),
        eod,
    )
    assert (tokens.tolist(), lengths.tolist(), sequences.tolist()) == megatron_documents(documents, eod)


class ByteEncoder(Encoder):
    """One id a byte; slower for blocks with an even number, so that results become ready out of order."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        self.threads.add(threading.get_ident())
        data = b"".join(texts.to_list())
        if data and data[-1] % 2 == 0:
            time.sleep(0.005)
        return np.frombuffer(data, np.uint8).astype(np.int32), np.diff(texts.offsets)


def blocks(count: int) -> list[Chunk]:
    return [MemoryChunk.of("file", b'{"text": "block %d"}\n' % number) for number in range(count)]


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_results_keep_the_order(workers: int) -> None:
    encoders = [ByteEncoder() for _ in range(workers)]
    found = list(pipeline.encode(blocks(50), encoders, "text", None, np.dtype(np.uint16)))
    assert [bytes(result.tokens.astype(np.uint8)) for result in found] == [b"block %d" % number for number in range(50)]
    assert {result.tokens.dtype for result in found} == {np.dtype(np.uint16)}
    assert sum(result.text_bytes for result in found) == 50 * len("block 0") + 40


def test_few_blocks_are_in_flight() -> None:
    taken = 0

    def counted() -> Iterator[Chunk]:
        nonlocal taken
        for block in blocks(100):
            taken += 1
            yield block

    results = pipeline.encode(counted(), [ByteEncoder(), ByteEncoder()], "text", None, np.dtype(np.int32))
    for done, _ in enumerate(results, 1):
        assert taken <= done + 2 * pipeline.BLOCKS_IN_FLIGHT_PER_WORKER
    assert taken == 100


class FailingEncoder(ByteEncoder):
    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        if b"block 3" in texts.to_list():
            raise RuntimeError("encoder failed")
        return super().encode(texts)


def test_an_error_in_a_thread_reaches_the_caller_and_threads_end() -> None:
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="encoder failed"):
        list(pipeline.encode(blocks(50), [FailingEncoder(), FailingEncoder()], "text", None, np.dtype(np.int32)))
    assert threading.active_count() == before
