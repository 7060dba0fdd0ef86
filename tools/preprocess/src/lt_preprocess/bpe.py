"""Byte-level BPE, compiled: the same ids as tiktoken's `encode_ordinary`, without holding the GIL.

A word is answered from the thread's cache, or is a whole token, or its bytes are merged: up to 64 bytes by scanning the ranks for
the smallest, longer ones by a heap over a linked list, so that a word of n bytes costs n log n and not n squared. Special tokens
do not exist here: `<|endoftext|>` in a text is 13 ordinary characters.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess import character_classes, hash_tables
from lt_preprocess.compilation import AnnounceCompilation, inner, kernel
from lt_preprocess.hash_tables import (
    CACHED_IDS,
    CACHED_WORD_BYTES,
    NO_MERGE,
    Bytes,
    Integers,
    Words,
    find_merge,
    find_piece,
    find_word,
    keep_word,
    word_key,
    word_set,
)
from lt_preprocess.pretokenizer import piece_end
from lt_preprocess.tokenizer import Encoder, Texts, Tokenizer
from lt_preprocess.vocabulary import Vocabulary

Ids = npt.NDArray[np.int32]

SCANNED_WORD_BYTES = 64

_ID = np.uint64(0xFFFFFFFF)


class Tables(NamedTuple):
    """A vocabulary as the compiled code reads it; shared by all threads."""

    pattern: int
    classes: Bytes
    byte_ids: Ids
    pairs: Words
    piece_slots: Integers
    piece_bytes: Bytes
    piece_offsets: Integers
    piece_ids: Ids


def _slots_for(entries: int) -> int:
    """A power of two that `entries` fill at most by half."""
    return 1 << max(4, (2 * entries - 1).bit_length())


def build_tables(vocabulary: Vocabulary) -> Tables:
    pieces = vocabulary.whole_pieces
    offsets = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    data = np.frombuffer(bytearray(b"".join(pieces)), np.uint8)
    return Tables(
        vocabulary.pattern,
        character_classes.table(),
        vocabulary.byte_ids,
        hash_tables.build_pairs(vocabulary.merges, _slots_for(len(vocabulary.merges))),
        hash_tables.build_pieces(data, offsets, _slots_for(len(pieces))),
        data,
        offsets,
        np.array(list(pieces.values()), np.int32),
    )


@inner
def _merge_scanning(tables: Tables, data: Bytes, start: int, end: int, merges: Words, output: Ids, count: int) -> int:
    """Merge a short word in place at the end of `output`; `merges` [SCANNED_WORD_BYTES] is scratch space."""
    size = end - start
    for index in range(size):
        output[count + index] = tables.byte_ids[data[start + index]]
    for index in range(size - 1):
        merges[index] = find_merge(tables.pairs, output[count + index], output[count + index + 1])
    while size > 1:
        best, at = NO_MERGE, 0
        for index in range(size - 1):
            if merges[index] < best:
                best, at = merges[index], index
        if best == NO_MERGE:
            break
        output[count + at] = np.int32(best & _ID)
        size -= 1
        for index in range(at + 1, size):
            output[count + index] = output[count + index + 1]
            merges[index - 1] = merges[index]
        if at + 1 < size:
            merges[at] = find_merge(tables.pairs, output[count + at], output[count + at + 1])
        if at > 0:
            merges[at - 1] = find_merge(tables.pairs, output[count + at - 1], output[count + at])
    return count + size


@inner
def _push(heap_merges: Words, heap_places: Integers, size: int, merge: np.uint64, place: int) -> None:
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap_merges[parent] < merge or (heap_merges[parent] == merge and heap_places[parent] < place):
            break
        heap_merges[at], heap_places[at] = heap_merges[parent], heap_places[parent]
        at = parent
    heap_merges[at], heap_places[at] = merge, place


@inner
def _pop(heap_merges: Words, heap_places: Integers, size: int) -> None:
    """Remove the first of `size` entries."""
    merge, place = heap_merges[size - 1], heap_places[size - 1]
    at, child = 0, 1
    while child < size - 1:
        following = child + 1
        if following < size - 1 and (
            heap_merges[following] < heap_merges[child]
            or (heap_merges[following] == heap_merges[child] and heap_places[following] < heap_places[child])
        ):
            child = following
        if merge < heap_merges[child] or (merge == heap_merges[child] and place < heap_places[child]):
            break
        heap_merges[at], heap_places[at] = heap_merges[child], heap_places[child]
        at, child = child, 2 * child + 1
    heap_merges[at], heap_places[at] = merge, place


@inner
def _merge_with_heap(tables: Tables, data: Bytes, start: int, end: int, output: Ids, count: int) -> int:
    """Merge a long word. Nodes are byte positions; a heap entry is stale when its node's pair has another merge by now."""
    size = end - start
    ids = np.empty(size, np.int32)
    merges = np.empty(size, np.uint64)
    before = np.arange(-1, size - 1)
    after = np.arange(1, size + 1)
    heap_merges = np.empty(3 * size, np.uint64)
    heap_places = np.empty(3 * size, np.int64)
    waiting = 0
    for index in range(size):
        ids[index] = tables.byte_ids[data[start + index]]
    for index in range(size):
        merges[index] = find_merge(tables.pairs, ids[index], ids[index + 1]) if index + 1 < size else NO_MERGE
        if merges[index] != NO_MERGE:
            _push(heap_merges, heap_places, waiting, merges[index], index)
            waiting += 1
    while waiting > 0:
        merge, place = heap_merges[0], heap_places[0]
        _pop(heap_merges, heap_places, waiting)
        waiting -= 1
        if merges[place] != merge:
            continue
        absorbed = after[place]
        ids[place] = np.int32(merge & _ID)
        merges[absorbed] = NO_MERGE
        after[place] = after[absorbed]
        merges[place] = NO_MERGE
        if after[place] < size:
            before[after[place]] = place
            merges[place] = find_merge(tables.pairs, ids[place], ids[after[place]])
        previous = before[place]
        if previous >= 0:
            merges[previous] = find_merge(tables.pairs, ids[previous], ids[place])
        for changed in (previous, place):
            if changed >= 0 and merges[changed] != NO_MERGE:
                _push(heap_merges, heap_places, waiting, merges[changed], changed)
                waiting += 1
    place = 0
    while place < size:
        output[count] = ids[place]
        count += 1
        place = after[place]
    return count


@inner
def _merge(tables: Tables, data: Bytes, start: int, end: int, scratch: Words, output: Ids, count: int) -> int:
    if len(tables.piece_ids):
        number = find_piece(tables.piece_slots, tables.piece_bytes, tables.piece_offsets, data, start, end)
        if number >= 0:
            output[count] = tables.piece_ids[number]
            return count + 1
    if end - start <= SCANNED_WORD_BYTES:
        return _merge_scanning(tables, data, start, end, scratch, output, count)
    return _merge_with_heap(tables, data, start, end, output, count)


@kernel
def _encode(tables: Tables, cache: Words, data: Bytes, offsets: Integers, output: Ids, lengths: Integers) -> int:
    """Encode the texts data[offsets[i]:offsets[i + 1]]; returns the number of ids written to `output`."""
    scratch = np.empty(SCANNED_WORD_BYTES, np.uint64)
    count = 0
    for text in range(len(offsets) - 1):
        start, end, before_text = offsets[text], offsets[text + 1], count
        while start < end:
            stop = piece_end(tables.pattern, data, start, end, tables.classes)
            before_word = count
            if stop - start <= CACHED_WORD_BYTES:
                low, high = word_key(data, start, stop)
                at = word_set(low, high)
                count = find_word(cache, at, low, high, output, count)
                if count == before_word:
                    count = _merge(tables, data, start, stop, scratch, output, count)
                    if count - before_word <= CACHED_IDS:
                        keep_word(cache, at, low, high, output, before_word, count)
            else:
                count = _merge(tables, data, start, stop, scratch, output, count)
            start = stop
        lengths[text] = count - before_text
    return count


class WordCachingEncoder(Encoder):
    """Encodes texts for one thread; the tables are shared, the cache of words is its own."""

    def __init__(self, tables: Tables):
        self._tables = tables
        self._cache = hash_tables.new_word_cache()

    def encode(self, texts: Texts) -> tuple[Ids, Integers]:
        output = np.empty(int(texts.offsets[-1]), np.int32)
        lengths = np.empty(len(texts.offsets) - 1, np.int64)
        count = _encode(self._tables, self._cache, texts.data, texts.offsets, output, lengths)
        return output[:count], lengths


class ByteLevelBpe(Tokenizer):
    """A tokenizer over a byte-level BPE vocabulary."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocab_size = vocabulary.vocab_size
        self.eod = vocabulary.eod
        self._vocabulary = vocabulary
        self._tables: Tables | None = None

    def new_encoder(self) -> WordCachingEncoder:
        """Call from one thread: the first call builds the tables and compiles, and tells the user when that takes time."""
        if self._tables is None:
            with AnnounceCompilation():
                self._tables = build_tables(self._vocabulary)
                WordCachingEncoder(self._tables).encode(Texts.of([b"a"]))
        return WordCachingEncoder(self._tables)
