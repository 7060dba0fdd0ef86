"""A cache of the words that a thread has seen and their ids, in bounded memory: 192 MiB a thread, whatever the input.

Of 267,000 words a megabyte, 2% are new in the first 40 MB and fewer later. A set is one cache line with two entries of 32 bytes,
each a key and up to four ids; a new word evicts the older of the two, unless the neighbouring set has a free entry. The key of a
word of up to 15 bytes is the word itself. Longer words, up to LONGEST_BYTES, are found by a hash and compared with their bytes in
the arena, which also holds ids when there are more than four: 2% of the words of mixed text, but those that cost most. The arena
is a ring buffer; an entry has the offset of its record in all bytes ever written, which tells whether it has been overwritten.

The cache begins with few sets and uses more as it fills, because the kernel clears each page that is first written: 128 MiB of
sets took as long as encoding 10 MB. Half of 192 MiB was too small for 190 MB of mixed text: 98 to 139 MB per CPU second, not 198.

An entry, in uint64: the lowest 8 bytes of the key; its other 7 bytes, 4 bits of length (0 for a hash), 4 bits for the number of
ids (_IN_ARENA when they are there); four ids, or the offset in the arena.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.compiler.intrinsics import address, aligned, load64, signed, stay_a_call, store64
from lt_preprocess.compiler.jit import inner

WORD_BYTES = 15
WORD_IDS = 4
LONGEST_BYTES = 128

_FIRST_SET_BITS, _MOST_SET_BITS = 16, 21
# With half as many sets, a word of twenty is in the neighbouring set, which is looked at second: 290 MB per CPU second, not 330.
_SETS_PER_WORD = 4
_SET_BYTES = 64
_ENTRY_BYTES = 32
_ARENA_BYTES = 64 << 20
_ARENA_MASK = _ARENA_BYTES - 1
_WORST_IN_ARENA = 8 + LONGEST_BYTES + 8 + 4 * LONGEST_BYTES + 8
_IN_ARENA = 15

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_EMPTY = np.uint64(0)
_ONE = np.uint64(1)
_KEY = np.uint64(0x0FFFFFFFFFFFFFFF)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_LOW_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HIGH_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)
_WORD_BITS = 64
_LAST_SHIFT = np.uint64(_WORD_BITS - _MOST_SET_BITS)
_GROWTH_BITS = np.uint64(2)
_COUNT_SHIFT = np.uint64(60)
_HASHED = np.uint64((1 << 56) - 1)
# Counters behind the arena's ring buffer: bytes ever written to it; shift that makes a set's number of a hash; words that may be
# inserted before there are more sets.
_WRITTEN, _SHIFT, _ROOM = range(_ARENA_BYTES, _ARENA_BYTES + 24, 8)


class WordCache(NamedTuple):
    """The addresses of `WordCacheArrays`."""

    sets: int
    arena: int
    masks: int


class WordCacheArrays:
    """An empty cache for one thread; owns the arrays. `_arena` ends with the counters."""

    def __init__(self) -> None:
        self._sets = aligned((1 << _MOST_SET_BITS) * _SET_BYTES // 8, boundary_bytes=2 * _SET_BYTES)
        self._arena = aligned(_ARENA_BYTES // 8 + 3)
        self._arena[_SHIFT // 8], self._arena[_ROOM // 8] = _WORD_BITS - _FIRST_SET_BITS, (1 << _FIRST_SET_BITS) // _SETS_PER_WORD
        self._masks = _key_masks()
        self.addresses = WordCache(address(self._sets), address(self._arena), address(self._masks))


def _key_masks() -> npt.NDArray[np.uint64]:
    """For words of 0 to WORD_BYTES bytes: masks of their bytes in 16 loaded ones, and the length in the high half of the last."""
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
    for word in range(start, last, 8):
        low = (low ^ load64(word)) * _LOW_MULTIPLIER
        high = (high + low) * _HIGH_MULTIPLIER
        low ^= low >> _HALF
    low = (low ^ (load64(last) & _last_mask(size))) * _LOW_MULTIPLIER
    return low, (high + (low >> _HALF) + low) & _HASHED


@inner
def _last_mask(size: int) -> np.uint64:
    """Return the mask of the word's bytes within its last eight loaded bytes."""
    return _ALL >> np.uint64(-8 * size & 63)


@inner
def word_set(cache: WordCache, shift: np.uint64, low: np.uint64, high: np.uint64) -> int:
    """The address of the set that a word belongs to."""
    hashed = (low ^ high * _HIGH_MULTIPLIER) * _LOW_MULTIPLIER
    return cache.sets + signed(hashed >> shift) * _SET_BYTES


@inner
def neighbouring_set(set_address: int) -> int:
    """Return the address of the set that takes words which find no free entry in the set at `set_address`."""
    return set_address ^ _SET_BYTES


@inner
def set_shift(cache: WordCache) -> np.uint64:
    """Return the shift that makes the number of a set of a hash; `make_room` changes it."""
    return load64(cache.arena + _SHIFT)


@inner
def make_room(cache: WordCache) -> None:
    """Let the cache use more sets if it is filled; addresses from `word_set` are no longer valid then."""
    stay_a_call()
    shift = set_shift(cache)
    if (signed(load64(cache.arena + _ROOM)) > 0) | (shift == _LAST_SHIFT):
        return
    before = 1 << (_WORD_BITS - signed(shift))
    shift = max(shift - _GROWTH_BITS, _LAST_SHIFT)
    after = 1 << (_WORD_BITS - signed(shift))
    store64(cache.arena + _SHIFT, shift)
    store64(cache.arena + _ROOM, np.uint64((after - before) // _SETS_PER_WORD))
    # Backwards, because words move to later sets; in the first two sets, a word that stays may evict another.
    last = cache.sets + (before - 1) * _SET_BYTES
    for offset in range(0, before * _SET_BYTES, _SET_BYTES):
        _move_word(cache, last - offset + _ENTRY_BYTES)
        _move_word(cache, last - offset)


@inner
def _move_word(cache: WordCache, entry: int) -> None:
    low, high, ids, more_ids = load64(entry), load64(entry + 8), load64(entry + 16), load64(entry + 24)
    if high == _EMPTY:
        return
    store64(entry + 8, _EMPTY)
    target = _free_entry(word_set(cache, set_shift(cache), low, high & _KEY))
    store64(target, low)
    store64(target + 8, high)
    store64(target + 16, ids)
    store64(target + 24, more_ids)


@inner
def _free_entry(set_address: int) -> int:
    """Return the address of an entry for a new word of this set. The older of two words is evicted.

    A word goes to the neighbouring set while only that has a free entry: the first words of a text are its most frequent, and are
    found faster in their own set.
    """
    neighbour = neighbouring_set(set_address)
    is_full = load64(set_address + _ENTRY_BYTES + 8) != _EMPTY
    newer = neighbour if is_full & (load64(neighbour + _ENTRY_BYTES + 8) == _EMPTY) else set_address
    for offset in range(0, _ENTRY_BYTES, 8):
        store64(newer + _ENTRY_BYTES + offset, load64(newer + offset))
    return newer


@inner
def has_key(set_address: int, low: np.uint64, high: np.uint64) -> bool:
    """Whether the set at `set_address` has an entry with this key."""
    first = (load64(set_address) ^ low) | ((load64(set_address + 8) ^ high) & _KEY)
    second = (load64(set_address + 32) ^ low) | ((load64(set_address + 40) ^ high) & _KEY)
    return bool((first == 0) | (second == 0))


@inner
def find_word(cache: WordCache, set_address: int, low: np.uint64, high: np.uint64, start: int, size: int, output: int) -> int:
    """Look a word up in the set at `set_address`, and write its ids to `output`; return their number, 0 if the word is missing.

    Up to WORD_IDS ids behind the word's ids may be overwritten.
    """
    first = (load64(set_address) ^ low) | ((load64(set_address + 8) ^ high) & _KEY)
    second = (load64(set_address + 32) ^ low) | ((load64(set_address + 40) ^ high) & _KEY)
    if (first != 0) & (second != 0):
        return 0
    entry = set_address + _ENTRY_BYTES * signed(first != 0)
    store64(output, load64(entry + 16))
    store64(output + 8, load64(entry + 24))
    count = signed(load64(entry + 8) >> _COUNT_SHIFT)
    return count if count != _IN_ARENA else _find_in_arena(cache, entry, start, size, output)


@inner
def _find_in_arena(cache: WordCache, entry: int, start: int, size: int, output: int) -> int:
    arena_offset = signed(load64(entry + 16))
    if signed(load64(cache.arena + _WRITTEN)) - arena_offset > _ARENA_BYTES:
        return 0
    record = cache.arena + (arena_offset & _ARENA_MASK)
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
def insert_word(
    cache: WordCache, set_address: int, low: np.uint64, high: np.uint64, start: int, size: int, output: int, count: int
) -> None:
    """Insert a word with the ids at `output`; evicts the older of the two words of the set."""
    entry = _free_entry(set_address)
    store64(cache.arena + _ROOM, load64(cache.arena + _ROOM) - _ONE)
    store64(entry, low)
    if size <= WORD_BYTES and count <= WORD_IDS:
        store64(entry + 8, high | np.uint64(count) << _COUNT_SHIFT)
        store64(entry + 16, load64(output))
        store64(entry + 24, load64(output + 8))
        return
    store64(entry + 8, high | np.uint64(_IN_ARENA) << _COUNT_SHIFT)
    written = signed(load64(cache.arena + _WRITTEN))
    if (written & _ARENA_MASK) + _WORST_IN_ARENA > _ARENA_BYTES:
        written = (written | _ARENA_MASK) + 1
    store64(entry + 16, np.uint64(written))
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
    store64(cache.arena + _WRITTEN, np.uint64(written + ((ids - record + 4 * count + 7) & ~7)))
