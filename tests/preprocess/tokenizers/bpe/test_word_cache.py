"""The word cache returns the ids of every inserted word, also after it has grown, and uses no memory but its own."""

import numpy as np

from lt_preprocess.compiler.intrinsics import address, load32, load64, signed
from lt_preprocess.compiler.jit import kernel
from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers.bpe import word_cache
from lt_preprocess.tokenizers.bpe.word_cache import (
    WordCache,
    find_word,
    insert_word,
    make_room,
    neighbouring_set,
    set_shift,
    word_key,
    word_set,
)

# The sets become more at 16,384 and 65,536 words.
WORDS = 70_000


@kernel
def insert_words(cache: WordCache, data: int, offsets: int, ids: int, count: int) -> None:
    """Insert words; a word has up to five ids, that of number n begins with id n."""
    for number in range(count):
        start = data + signed(load64(offsets + 8 * number))
        size = data + signed(load64(offsets + 8 * number + 8)) - start
        low, high = word_key(cache, start, size)
        set_address = word_set(cache, set_shift(cache), low, high)
        insert_word(cache, set_address, low, high, start, size, ids + 4 * number, 1 + number % 5)
        make_room(cache)


@kernel
def find_words(cache: WordCache, data: int, offsets: int, ids: int, output: int, count: int) -> tuple[int, int]:
    """Look up the words; returns how many are found with their ids, and with others."""
    right, wrong = 0, 0
    for number in range(count):
        start = data + signed(load64(offsets + 8 * number))
        size = data + signed(load64(offsets + 8 * number + 8)) - start
        low, high = word_key(cache, start, size)
        set_address = word_set(cache, set_shift(cache), low, high)
        id_count = find_word(cache, set_address, low, high, start, size, output)
        if id_count == 0:
            id_count = find_word(cache, neighbouring_set(set_address), low, high, start, size, output)
        is_right = id_count == 1 + number % 5
        for index in range(id_count):
            is_right &= load32(output + 4 * index) == load32(ids + 4 * (number + index))
        right += is_right
        wrong += (id_count > 0) & (not is_right)
    return right, wrong


def test_words_are_found_after_the_cache_has_grown() -> None:
    arrays = word_cache.WordCacheArrays()
    texts = Texts.from_list([b"%d " % number * (1 + number % 4) for number in range(WORDS)])
    ids, output = np.arange(WORDS + 64, dtype=np.int32), np.zeros(64, np.int32)
    addresses = [address(array) for array in (texts.data, texts.offsets, ids)]
    shift = set_shift(arrays.addresses)
    insert_words(arrays.addresses, *addresses, WORDS)
    assert set_shift(arrays.addresses) == shift - 4
    right, wrong = find_words(arrays.addresses, *addresses, address(output), WORDS)
    assert wrong == 0
    assert right > 0.998 * WORDS


def test_neighbouring_sets_lie_in_the_memory_of_the_cache() -> None:
    arrays = [word_cache.WordCacheArrays() for _ in range(4)]
    for first, size_bytes in [(address(one._sets), one._sets.nbytes) for one in arrays]:
        assert neighbouring_set(first) == first + 64
        assert neighbouring_set(first + size_bytes - 64) == first + size_bytes - 128
