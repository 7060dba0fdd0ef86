"""Results come in the order of the input, whatever the number of threads, and few chunks are in memory."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from lt_preprocess.documents import recipe as recipes
from lt_preprocess.documents.document_form import DocumentForm
from lt_preprocess.documents.recipe import Recipe
from lt_preprocess.pipeline import encoding
from lt_preprocess.readers.chunks import Chunk
from lt_preprocess.readers.jsonl import MemoryChunk
from lt_preprocess.texts import Lengths, Texts
from lt_preprocess.tokenizers.base import Encoder, Ids


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


def recipe(json_keys: tuple[str, ...], dtype: npt.DTypeLike, eod: int | None = None) -> Recipe:
    return recipes.make(json_keys, None, DocumentForm(np.dtype(dtype), eod=eod))


def chunks(count: int) -> list[Chunk]:
    return [MemoryChunk.of("file", b'{"text": "block %d"}\n' % number) for number in range(count)]


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_results_keep_the_order(workers: int) -> None:
    encoders = [ByteEncoder() for _ in range(workers)]
    found = list(encoding.encode(chunks(50), encoders, recipe(("text",), np.uint16)))
    assert [bytes(result.columns[0].tokens.astype(np.uint8)) for result in found] == [b"block %d" % n for n in range(50)]
    assert {result.columns[0].tokens.dtype for result in found} == {np.dtype(np.uint16)}
    assert sum(result.text_bytes for result in found) == 50 * len("block 0") + 40


def test_one_column_for_each_key() -> None:
    lines = b'{"text": "ab", "title": ["c", "", "d"]}\n{"text": 1, "title": "e"}\n{"text": "", "title": "f"}\n'
    [found] = encoding.encode([MemoryChunk.of("file", lines)], [ByteEncoder()], recipe(("title", "text"), np.int32, 7))
    title, text = found.columns
    assert (title.tokens.tolist(), title.sequence_lengths.tolist(), title.sequences_per_document.tolist()) == (
        [99, 100, 7, 102, 7],
        [1, 2, 2],
        [2, 1],
    )
    assert (text.tokens.tolist(), text.sequence_lengths.tolist(), text.sequences_per_document.tolist()) == (
        [97, 98, 7],
        [3],
        [1, 0],
    )
    assert [line.line for line in found.bad_lines] == [2]
    assert (found.documents, found.text_bytes, found.end) == (2, 5, (0, len(lines), 4))


def test_few_blocks_are_in_flight() -> None:
    taken = 0

    def counted() -> Iterator[Chunk]:
        nonlocal taken
        for chunk in chunks(100):
            taken += 1
            yield chunk

    results = encoding.encode(counted(), [ByteEncoder(), ByteEncoder()], recipe(("text",), np.int32))
    for done, _ in enumerate(results, 1):
        assert taken <= done + 2 * encoding.CHUNKS_IN_FLIGHT_PER_WORKER
    assert taken == 100


class FailingEncoder(ByteEncoder):
    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        if b"block 3" in texts.to_list():
            raise RuntimeError("encoder failed")
        return super().encode(texts)


def test_an_error_in_a_thread_reaches_the_caller_and_threads_end() -> None:
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="encoder failed"):
        list(encoding.encode(chunks(50), [FailingEncoder(), FailingEncoder()], recipe(("text",), np.int32)))
    assert threading.active_count() == before
