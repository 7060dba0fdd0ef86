"""The words that a thread has seen and their ids, in bounded memory: 96 MiB a thread, whatever the input.

Natural text repeats its words: of 267,000 words a megabyte, 2% are new in the first 40 MB and fewer later. A set of the table
is one cache line with two entries of 32 bytes: key and up to four ids. The key of a word of up to 15 bytes is the word itself.
Longer words, up to LONGEST_BYTES, are found by a hash and compared in the arena, where also the ids lie when there are more
than four: 2% of the words of mixed text, but those that cost most. The arena is written in a circle; an entry knows the place of
its record, counted from the first circle on, and so whether it has been overwritten. The newer of two words that want the same
place stays.

An entry, in uint64: the lowest 8 bytes of the key; its other 7 bytes, 4 bits of length (0 for a hash), 4 bits for the number of
ids (_IN_ARENA when they are there); four ids, or the place in the arena.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.kernels.intrinsics import address, aligned, load64, signed, store64
from lt_preprocess.kernels.jit import inner

WORD_BYTES = 15
WORD_IDS = 4
LONGEST_BYTES = 128

_SET_BITS = 20
_SET_BYTES = 64
_ENTRY_BYTES = 32
_ARENA_BYTES = 32 << 20
_ARENA_MASK = _ARENA_BYTES - 1
_WORST_IN_ARENA = 8 + LONGEST_BYTES + 8 + 4 * LONGEST_BYTES + 8
_IN_ARENA = 15

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_KEY = np.uint64(0x0FFFFFFFFFFFFFFF)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_LOW_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HIGH_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)
_SET_SHIFT = np.uint64(64 - _SET_BITS)
_COUNT_SHIFT = np.uint64(60)
_HASHED = np.uint64((1 << 56) - 1)


class WordCache(NamedTuple):
    """Addresses of the `Memory` of a cache."""

    sets: int
    arena: int
    masks: int


class Memory:
    """An empty cache, for one thread. After the arena stands the number of bytes that were ever written to it."""

    def __init__(self) -> None:
        self._sets = aligned((1 << _SET_BITS) * _SET_BYTES // 8)
        self._arena = aligned(_ARENA_BYTES // 8 + 1)
        self._masks = _key_masks()
        self.view = WordCache(address(self._sets), address(self._arena), address(self._masks))


def _key_masks() -> npt.NDArray[np.uint64]:
    """What counts of the 16 bytes at a word of 0 to WORD_BYTES bytes, and its length in the other half of the last byte."""
    masks = [(1 << 8 * size) - 1 for size in range(WORD_BYTES + 1)]
    rows = [(mask & int(_ALL), mask >> 64, size << 56, 0) for size, mask in enumerate(masks)]
    return np.array(rows, np.uint64)


@inner
def word_key(cache: WordCache, start: int, size: int) -> tuple[np.uint64, np.uint64]:
    """The key of a word of at most LONGEST_BYTES."""
    if size <= WORD_BYTES:
        mask = cache.masks + 32 * size
        return load64(start) & load64(mask), load64(start + 8) & load64(mask + 8) | load64(mask + 16)
    low, high = np.uint64(size), np.uint64(0)
    last = start + ((size - 1) & ~7)
    for place in range(start, last, 8):
        low = (low ^ load64(place)) * _LOW_MULTIPLIER
        high = (high + low) * _HIGH_MULTIPLIER
        low ^= low >> _HALF
    low = (low ^ (load64(last) & _last_mask(size))) * _LOW_MULTIPLIER
    return low, (high + (low >> _HALF) + low) & _HASHED


@inner
def _last_mask(size: int) -> np.uint64:
    """What counts of the last eight bytes of a word."""
    return _ALL >> np.uint64(-8 * size & 63)


@inner
def word_set(cache: WordCache, low: np.uint64, high: np.uint64) -> int:
    """The address of the set in which a word may be."""
    hashed = (low ^ high * _HIGH_MULTIPLIER) * _LOW_MULTIPLIER
    return cache.sets + signed(hashed >> _SET_SHIFT) * _SET_BYTES


@inner
def find_word(cache: WordCache, place: int, low: np.uint64, high: np.uint64, start: int, size: int, output: int) -> int:
    """Write the ids of a word that is in the set `place` to `output`, with room for WORD_IDS more; their number or 0."""
    first = (load64(place) ^ low) | ((load64(place + 8) ^ high) & _KEY)
    second = (load64(place + 32) ^ low) | ((load64(place + 40) ^ high) & _KEY)
    if (first != 0) & (second != 0):
        return 0
    entry = place if first == 0 else place + 32
    store64(output, load64(entry + 16))
    store64(output + 8, load64(entry + 24))
    count = signed(load64(entry + 8) >> _COUNT_SHIFT)
    return count if count != _IN_ARENA else _find_in_arena(cache, entry, start, size, output)


@inner
def _find_in_arena(cache: WordCache, entry: int, start: int, size: int, output: int) -> int:
    place = signed(load64(entry + 16))
    if signed(load64(cache.arena + _ARENA_BYTES)) - place > _ARENA_BYTES:
        return 0
    record = cache.arena + (place & _ARENA_MASK)
    header = load64(record)
    ids = record + 8
    if size > WORD_BYTES:
        if signed(header & _LOW_HALF) != size:
            return 0
        last = (size - 1) & ~7
        for offset in range(0, last, 8):
            if load64(record + 8 + offset) != load64(start + offset):
                return 0
        if load64(record + 8 + last) != load64(start + last) & _last_mask(size):
            return 0
        ids += last + 8
    count = signed(header >> _HALF)
    for offset in range(0, 4 * count, 8):
        store64(output + offset, load64(ids + offset))
    return count


@inner
def keep_word(
    cache: WordCache, place: int, low: np.uint64, high: np.uint64, start: int, size: int, output: int, count: int
) -> None:
    """Remember the ids at `output`; the older of the two words in the set is forgotten."""
    for offset in range(0, _ENTRY_BYTES, 8):
        store64(place + _ENTRY_BYTES + offset, load64(place + offset))
    store64(place, low)
    if size <= WORD_BYTES and count <= WORD_IDS:
        store64(place + 8, high | np.uint64(count) << _COUNT_SHIFT)
        store64(place + 16, load64(output))
        store64(place + 24, load64(output + 8))
        return
    store64(place + 8, high | np.uint64(_IN_ARENA) << _COUNT_SHIFT)
    written = signed(load64(cache.arena + _ARENA_BYTES))
    if (written & _ARENA_MASK) + _WORST_IN_ARENA > _ARENA_BYTES:
        written = (written | _ARENA_MASK) + 1
    store64(place + 16, np.uint64(written))
    record = cache.arena + (written & _ARENA_MASK)
    store64(record, np.uint64(count) << _HALF | np.uint64(size))
    ids = record + 8
    if size > WORD_BYTES:
        last = (size - 1) & ~7
        for offset in range(0, last, 8):
            store64(record + 8 + offset, load64(start + offset))
        store64(record + 8 + last, load64(start + last) & _last_mask(size))
        ids += last + 8
    for offset in range(0, 4 * count, 8):
        store64(ids + offset, load64(output + offset))
    store64(cache.arena + _ARENA_BYTES, np.uint64(written + ((ids - record + 4 * count + 7) & ~7)))
