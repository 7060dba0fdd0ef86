"""Three open-addressing tables for the encoder, as plain arrays that compiled code reads without the GIL.

Pairs: (left id, right id) to merge, 16 bytes an entry, at most half full. Whole pieces: token bytes to id, compared byte for
byte. Word cache: the ids of words of up to 15 bytes that were seen lately, 32 bytes an entry, two entries a set, 4 MiB for each
thread whatever the input. Natural text repeats its words, so 93 to 98% of them are answered here without merging.
"""

import numpy as np
import numpy.typing as npt

from lt_preprocess.compilation import inner, kernel

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

NO_MERGE = np.uint64(0xFFFFFFFFFFFFFFFF)
CACHED_WORD_BYTES = 15
CACHED_IDS = 4
WORD_CACHE_SETS = 1 << 16

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SECOND_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_NO_ID = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)
_BYTE_SHIFTS = tuple(np.uint64(8 * index) for index in range(8))
_OFFSETS = tuple(np.uint64(index) for index in range(8))


@inner
def _mixed(key: np.uint64) -> np.uint64:
    product = key * _MULTIPLIER
    return product ^ (product >> _SHIFT_32)


@inner
def _pair_key(left: int, right: int) -> np.uint64:
    return np.uint64(left) << _SHIFT_32 | np.uint64(right)


@kernel
def build_pairs(merges: Integers, slots: int) -> Words:
    """The pair table, shape [slots, 2]: key, and rank << 32 | merged id. `slots` is a power of two above the number of merges."""
    table = np.full((slots, 2), _EMPTY, np.uint64)
    mask = np.uint64(slots - 1)
    for row in range(len(merges)):
        key = _pair_key(merges[row, 0], merges[row, 1])
        slot = _mixed(key) & mask
        while table[slot, 0] != _EMPTY:
            slot = (slot + np.uint64(1)) & mask
        table[slot, 0] = key
        table[slot, 1] = np.uint64(merges[row, 2]) << _SHIFT_32 | np.uint64(merges[row, 3])
    return table


@inner
def find_merge(pairs: Words, left: int, right: int) -> np.uint64:
    """rank << 32 | merged id, or NO_MERGE: the smallest value is the merge to do first."""
    key = _pair_key(left, right)
    mask = np.uint64(len(pairs) - 1)
    slot = _mixed(key) & mask
    while True:
        found = pairs[slot, 0]
        if found == key:
            return np.uint64(pairs[slot, 1])
        if found == _EMPTY:
            return NO_MERGE
        slot = (slot + np.uint64(1)) & mask


@inner
def _hash_of(data: Bytes, start: int, end: int) -> np.uint64:
    value = np.uint64(end - start)
    for at in range(start, end):
        value = (value ^ np.uint64(data[at])) * _MULTIPLIER
    return _mixed(value)


@kernel
def build_pieces(data: Bytes, offsets: Integers, slots: int) -> Integers:
    """Slots of the whole-piece table, shape [slots]: the token's number in `offsets`, or -1."""
    table = np.full(slots, -1, np.int64)
    mask = np.uint64(slots - 1)
    for number in range(len(offsets) - 1):
        slot = _hash_of(data, offsets[number], offsets[number + 1]) & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = number
    return table


@inner
def find_piece(slots: Integers, tokens: Bytes, offsets: Integers, data: Bytes, start: int, end: int) -> int:
    """The number of the token that equals data[start:end], or -1."""
    mask = np.uint64(len(slots) - 1)
    slot = _hash_of(data, start, end) & mask
    while slots[slot] >= 0:
        number = slots[slot]
        first = offsets[number]
        if offsets[number + 1] - first == end - start:
            index = 0
            while index < end - start and tokens[first + index] == data[start + index]:
                index += 1
            if index == end - start:
                return int(number)
        slot = (slot + np.uint64(1)) & mask
    return -1


@inner
def _eight_bytes(data: Bytes, start: int) -> np.uint64:
    """Eight bytes from `start` as a little-endian integer; written out so that it compiles to one load."""
    at = np.uint64(start)
    value = np.uint64(data[at])
    value |= np.uint64(data[at + _OFFSETS[1]]) << _BYTE_SHIFTS[1]
    value |= np.uint64(data[at + _OFFSETS[2]]) << _BYTE_SHIFTS[2]
    value |= np.uint64(data[at + _OFFSETS[3]]) << _BYTE_SHIFTS[3]
    value |= np.uint64(data[at + _OFFSETS[4]]) << _BYTE_SHIFTS[4]
    value |= np.uint64(data[at + _OFFSETS[5]]) << _BYTE_SHIFTS[5]
    value |= np.uint64(data[at + _OFFSETS[6]]) << _BYTE_SHIFTS[6]
    value |= np.uint64(data[at + _OFFSETS[7]]) << _BYTE_SHIFTS[7]
    return value


@inner
def word_key(data: Bytes, start: int, end: int) -> tuple[np.uint64, np.uint64]:
    """A word of 1 to CACHED_WORD_BYTES bytes as two integers, its length in the last byte: NUL bytes in it are not padding."""
    size = end - start
    low, high = _eight_bytes(data, start), np.uint64(0)
    if size < 8:
        low &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
    elif size > 8:
        high = _eight_bytes(data, start + 8) & ((np.uint64(1) << np.uint64(8 * (size - 8))) - np.uint64(1))
    return low, high | np.uint64(size) << _BYTE_SHIFTS[7]


@inner
def word_set(low: np.uint64, high: np.uint64) -> int:
    """The number of the cache set in which a word may be."""
    hashed = _mixed(low ^ high * _SECOND_MULTIPLIER)
    return int(np.int64(hashed & np.uint64(WORD_CACHE_SETS - 1)))


def new_word_cache() -> Words:
    """An empty cache, shape [sets, 2, 4]: key (2), ids (2, two in each). No word has a key of zeros."""
    return np.zeros((WORD_CACHE_SETS, 2, 4), np.uint64)


@inner
def find_word(cache: Words, at: int, low: np.uint64, high: np.uint64, output: npt.NDArray[np.int32], count: int) -> int:
    """Append the ids of a cached word to `output`; the new count, or `count` when the word is not there."""
    for way in range(2):
        if cache[at, way, 0] == low and cache[at, way, 1] == high:
            for half in range(2):
                two = cache[at, way, 2 + half]
                for one in (two & _NO_ID, two >> _SHIFT_32):
                    if one == _NO_ID:
                        return count
                    output[count] = np.int32(one)
                    count += 1
            return count
    return count


@inner
def keep_word(
    cache: Words, at: int, low: np.uint64, high: np.uint64, output: npt.NDArray[np.int32], first: int, count: int
) -> None:
    """Remember output[first:count], at most CACHED_IDS ids; the older of the two words in the set is forgotten."""
    for column in range(4):
        cache[at, 1, column] = cache[at, 0, column]
    cache[at, 0, 0] = low
    cache[at, 0, 1] = high
    cache[at, 0, 2] = _EMPTY
    cache[at, 0, 3] = _EMPTY
    for index in range(count - first):
        shift = np.uint64(32 * (index & 1))
        one = np.uint64(output[first + index])
        cache[at, 0, 2 + index // 2] &= ~(_NO_ID << shift)
        cache[at, 0, 2 + index // 2] |= one << shift
