"""Byte-level BPE, compiled: the same ids as tiktoken's `encode_ordinary`, without holding the GIL.

The ids of a word come from the thread's word cache, or it is a token that no merge makes, or its bytes are merged. Special tokens
are not known here: `<|endoftext|>` in a text is 13 ordinary characters.

A few hundred words are cut, hashed and prefetched before the first one is looked up. The word cache does not fit into the
processor's caches: a loop that cut and looked up each word in turn waited for memory at every tenth word, and took 1.6 times
as long.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.compiler.intrinsics import (
    address,
    load64,
    prefetch,
    signed,
    stay_a_call,
    store32,
    store64,
    trailing_zeros,
)
from lt_preprocess.compiler.jit import AnnounceCompilation, inner, kernel
from lt_preprocess.compiler.simd import BLOCK_BYTES, LANES
from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers import pattern_codes, vocabulary_cache
from lt_preprocess.tokenizers.base import Encoder, Tokenizer
from lt_preprocess.tokenizers.bpe import character_classes, merges, pretokenizer, whole_tokens, word_cache
from lt_preprocess.tokenizers.bpe.merges import (
    WORD_BYTES,
    WORDS_IN_TURNS,
    Merges,
    ids_of,
    merge_words,
    source_of,
    start_word,
    words_in_turns,
)
from lt_preprocess.tokenizers.bpe.single_words import merge
from lt_preprocess.tokenizers.bpe.whole_tokens import Pieces, find_piece
from lt_preprocess.tokenizers.bpe.word_cache import (
    LONGEST_BYTES,
    WordCache,
    find_word,
    has_key,
    insert_word,
    make_room,
    neighbouring_set,
    set_shift,
    word_key,
    word_set,
)
from lt_preprocess.tokenizers.vocabulary import Vocabulary
from lt_shared.console import BadData

Ids = npt.NDArray[np.int32]
Integers = npt.NDArray[np.int64]

QUEUED_WORDS = 256

_NONE = np.uint64(0)
_ONE = np.uint64(1)
# A queued word, four uint64. Words are contiguous in the text: one ends where the next starts.
_WORD_BYTES = 32
_START, _LOW, _HIGH, _SET = range(0, _WORD_BYTES, 8)


class Tables(NamedTuple):
    """A vocabulary as the compiled code reads it, shared by all threads. The addresses of `VocabularyTables`."""

    pattern: int
    classes: int
    merges: Merges
    pieces: Pieces


class VocabularyTables:
    """Owns the arrays of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary):
        self._classes = character_classes.table(vocabulary.pattern)
        self._merges = merges.build(vocabulary.byte_ids, vocabulary.merge_rows)
        self._pieces = whole_tokens.build_pieces({})
        pattern = _KERNEL_PATTERNS.get(vocabulary.pattern, vocabulary.pattern)
        self.addresses = self._addresses(pattern)
        self._pieces = whole_tokens.build_pieces(vocabulary_cache.pieces_without_merges(vocabulary, self._not_made_by_merges))
        self.addresses = self._addresses(pattern)

    def _addresses(self, pattern: int) -> Tables:
        return Tables(pattern, address(self._classes), self._merges.addresses(), self._pieces.addresses())

    def _not_made_by_merges(self, tokens: Mapping[bytes, int]) -> dict[bytes, int]:
        """The tokens that merging their bytes does not give: a few hundred of Llama 3's."""
        encoder = WordCachingEncoder(self, whole_texts=True)
        ids, lengths = encoder.encode(Texts.from_list(list(tokens)))
        firsts = ids[np.cumsum(lengths) - lengths]
        is_made = (lengths == 1) & (firsts == np.fromiter(tokens.values(), np.int32, len(tokens)))
        return {token: number for (token, number), is_reachable in zip(tokens.items(), is_made, strict=True) if not is_reachable}


class ThreadBuffers(NamedTuple):
    """The addresses of a thread's word cache and buffers. `queue` holds QUEUED_WORDS + 1 words.

    With `whole_texts` every text is a word.
    """

    words: WordCache
    scratch: int
    state: int
    queue: int
    whole_texts: bool


@inner
def _encode_word(tables: Tables, start: int, size: int, scratch: int, output: int) -> int:
    """Write the ids of a word that is not in the cache; returns their number."""
    number = find_piece(tables.pieces, start, size)
    if number >= 0:
        store32(output, np.uint32(number))
        return 1
    return merge(tables.merges, start, size, scratch, output)


@inner
def _enqueue(words: WordCache, shift: np.uint64, queue_end: int, start: int, size: int) -> None:
    """Write a word to the queue, at `queue_end`, and prefetch its set of the cache."""
    store64(queue_end + _START, np.uint64(start))
    if size <= LONGEST_BYTES:
        low, high = word_key(words, start, size)
        set_address = word_set(words, shift, low, high)
        prefetch(set_address)
        store64(queue_end + _LOW, low)
        store64(queue_end + _HIGH, high)
        store64(queue_end + _SET, np.uint64(set_address))


@inner
def _find_in_both_sets(words: WordCache, word: int, start: int, size: int, output: int) -> int:
    """Look a queued word up in its set and the neighbouring one; returns as `find_word`."""
    low, high, set_address = load64(word + _LOW), load64(word + _HIGH), signed(load64(word + _SET))
    id_count = find_word(words, set_address, low, high, start, size, output)
    if id_count == 0:
        id_count = find_word(words, neighbouring_set(set_address), low, high, start, size, output)
    return id_count


@inner
def _encode_missing(tables: Tables, buffers: ThreadBuffers, word: int, queue_end: int, start: int, size: int, output: int) -> int:
    """Write the ids of a queued word that is not in its set; returns their number. Warm text calls this once in 10,000 words."""
    stay_a_call()
    id_count = _find_in_both_sets(buffers.words, word, start, size, output)
    if id_count > 0:
        return id_count
    _cache_missing(tables, buffers, word, queue_end)
    id_count = _find_in_both_sets(buffers.words, word, start, size, output)
    # The words after it may have evicted it.
    return id_count if id_count > 0 else _encode_word(tables, start, size, buffers.scratch, output)


@inner
def _cache_missing(tables: Tables, buffers: ThreadBuffers, word: int, queue_end: int) -> None:
    """Insert the queued words that the cache lacks, from `word` on, as many as are merged in turns."""
    merging, missing, count = words_in_turns(buffers.scratch), 0, 0
    while (word < queue_end) & (missing < WORDS_IN_TURNS):
        size = signed(load64(word + _WORD_BYTES + _START) - load64(word + _START))
        set_address = signed(load64(word + _SET))
        if size <= LONGEST_BYTES and not has_key(set_address, load64(word + _LOW), load64(word + _HIGH)):
            prefetch(neighbouring_set(set_address))
            store64(merging + 8 * missing, np.uint64(word))
            missing += 1
        word += _WORD_BYTES
    for index in range(missing):
        word = signed(load64(merging + 8 * index))
        low, high, set_address = load64(word + _LOW), load64(word + _HIGH), signed(load64(word + _SET))
        if not has_key(neighbouring_set(set_address), low, high):
            start = signed(load64(word + _START))
            size = signed(load64(word + _WORD_BYTES + _START)) - start
            started = buffers.scratch + WORD_BYTES * count
            number = find_piece(tables.pieces, start, size)
            if number >= 0:
                store32(started, np.uint32(number))
                _insert(buffers.words, word, started, 1)
            else:
                start_word(tables.merges, started, start, size, word)
                store64(merging + 8 * count, np.uint64(started))
                count += 1
    merge_words(tables.merges, merging, count)
    for index in range(count):
        merged = buffers.scratch + WORD_BYTES * index
        ids, id_count = ids_of(merged)
        _insert(buffers.words, source_of(merged), ids, id_count)


@inner
def _insert(words: WordCache, word: int, ids: int, id_count: int) -> None:
    """Insert a queued word with the ids at `ids`, unless the cache has it by now."""
    low, high, set_address = load64(word + _LOW), load64(word + _HIGH), signed(load64(word + _SET))
    if not has_key(set_address, low, high) and not has_key(neighbouring_set(set_address), low, high):
        start = signed(load64(word + _START))
        size = signed(load64(word + _WORD_BYTES + _START)) - start
        insert_word(words, set_address, low, high, start, size, ids, id_count)


@inner
def _encode_queue(tables: Tables, buffers: ThreadBuffers, queue_end: int, end: int, output: int) -> int:
    """Write the ids of the queued words; the queue ends at `queue_end`, their text at `end`. Returns the end of the output."""
    store64(queue_end + _START, np.uint64(end))
    for word in range(buffers.queue, queue_end, _WORD_BYTES):
        start = signed(load64(word + _START))
        size = signed(load64(word + _WORD_BYTES + _START)) - start
        if size <= LONGEST_BYTES:
            low, high, set_address = load64(word + _LOW), load64(word + _HIGH), signed(load64(word + _SET))
            id_count = find_word(buffers.words, set_address, low, high, start, size, output)
            if id_count == 0:
                id_count = _encode_missing(tables, buffers, word, queue_end, start, size, output)
        else:
            id_count = _encode_word(tables, start, size, buffers.scratch, output)
        output += 4 * id_count
    make_room(buffers.words)
    return output


@inner
def _encode(
    word_starts: Any, tables: Tables, buffers: ThreadBuffers, count: int, data: int, offsets: int, output: int, lengths: int
) -> int:
    """Encode `count` texts; returns the number of ids written to `output`."""
    first_output = output
    full = buffers.queue + _WORD_BYTES * (QUEUED_WORDS - BLOCK_BYTES)
    for text in range(count):
        start, end = data + signed(load64(offsets + 8 * text)), data + signed(load64(offsets + 8 * text + 8))
        before_text, queue_end = output, buffers.queue
        shift = set_shift(buffers.words)
        for index in range(pretokenizer.STATE_SIZE):
            store64(buffers.state + 8 * index, np.uint64(0))
        for at in range(start, end + 1 if end > start else start, BLOCK_BYTES):
            starts = _NONE if buffers.whole_texts else word_starts(tables.pattern, at, end, tables.classes, buffers.state)
            if at == start:
                starts &= ~_ONE
            if end - at < BLOCK_BYTES:
                starts |= _ONE << np.uint64(end - at)
            while starts:
                stop = at + trailing_zeros(starts)
                starts &= starts - _ONE
                _enqueue(buffers.words, shift, queue_end, start, stop - start)
                queue_end += _WORD_BYTES
                start = stop
            if queue_end > full:
                output = _encode_queue(tables, buffers, queue_end, start, output)
                queue_end = buffers.queue
                shift = set_shift(buffers.words)
        output = _encode_queue(tables, buffers, queue_end, start, output)
        store64(lengths + 8 * text, np.uint64((output - before_text) >> 2))
    return (output - first_output) >> 2


@kernel
def _encode_by_class(
    tables: Tables, buffers: ThreadBuffers, count: int, data: int, offsets: int, output: int, lengths: int
) -> int:
    return _encode(pretokenizer.word_starts, tables, buffers, count, data, offsets, output, lengths)


@kernel
def _encode_by_case(
    tables: Tables, buffers: ThreadBuffers, count: int, data: int, offsets: int, output: int, lengths: int
) -> int:
    return _encode(pretokenizer.word_starts_by_case, tables, buffers, count, data, offsets, output, lengths)


@kernel
def _encode_by_script(
    tables: Tables, buffers: ThreadBuffers, count: int, data: int, offsets: int, output: int, lengths: int
) -> int:
    return _encode(pretokenizer.word_starts_by_script, tables, buffers, count, data, offsets, output, lengths)


@kernel
def _encode_in_three_splits(
    tables: Tables, buffers: ThreadBuffers, count: int, data: int, offsets: int, output: int, lengths: int
) -> int:
    return _encode(pretokenizer.word_starts_in_three_splits, tables, buffers, count, data, offsets, output, lengths)


_ENCODE = {
    pattern_codes.TEKKEN: _encode_by_case,
    pattern_codes.O200K: _encode_by_case,
    pattern_codes.KIMI: _encode_by_script,
    pattern_codes.DEEPSEEK: _encode_in_three_splits,
}
"""The kernels of the other patterns, each apart so that no tokenizer waits for the compiler of all."""

_KERNEL_PATTERNS = {pattern_codes.QWEN35: pattern_codes.QWEN2, pattern_codes.CL100K: pattern_codes.LLAMA3}
"""Patterns that are cut by the code of another."""


class WordCachingEncoder(Encoder):
    """Encodes texts for one thread; the tables are shared, the caches of words are its own."""

    def __init__(self, vocabulary: VocabularyTables, whole_texts: bool = False):
        # The arrays must live as long as their addresses are used.
        self._vocabulary = vocabulary
        self._tables = tables = vocabulary.addresses
        self._encode = _ENCODE.get(tables.pattern, _encode_by_class)
        self._words = word_cache.WordCacheArrays()
        self._scratch = merges.new_scratch()
        self._state = np.zeros(pretokenizer.STATE_SIZE, np.uint64)
        self._queue = np.zeros((QUEUED_WORDS + 1) * _WORD_BYTES // 8, np.uint64)
        self._buffers = ThreadBuffers(
            self._words.addresses, address(self._scratch), address(self._state), address(self._queue), whole_texts
        )

    def encode(self, texts: Texts) -> tuple[Ids, Integers]:
        count = len(texts.offsets) - 1
        output = np.empty(int(texts.offsets[-1]) + LANES, np.int32)
        lengths = np.empty(count, np.int64)
        addresses = map(address, (texts.data, texts.offsets, output, lengths))
        written = self._encode(self._tables, self._buffers, count, *addresses)
        return output[:written], lengths


class ByteLevelBpe(Tokenizer):
    """A tokenizer over a byte-level BPE vocabulary."""

    def __init__(self, vocabulary: Vocabulary):
        if vocabulary.vocab_size > merges.HIGHEST_ID:
            raise BadData(f"a vocabulary of {vocabulary.vocab_size:,} entries; the encoder takes {merges.HIGHEST_ID:,}")
        self.vocab_size = vocabulary.vocab_size
        self.eod = vocabulary.eod
        self._vocabulary = vocabulary
        self._tables: VocabularyTables | None = None

    def new_encoder(self) -> WordCachingEncoder:
        """Call from one thread: the first call builds the tables and compiles, and tells the user when that takes time."""
        if self._tables is None:
            with AnnounceCompilation():
                self._tables = VocabularyTables(self._vocabulary)
                WordCachingEncoder(self._tables).encode(Texts.from_list([b"a"]))
        return WordCachingEncoder(self._tables)
