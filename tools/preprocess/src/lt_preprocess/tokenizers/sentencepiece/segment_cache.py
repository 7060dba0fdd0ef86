"""Two caches of segments and their ids, for short and for long ones: 4 MiB for each thread, whatever the input.

Short segments (up to 15 bytes): entries of 32 bytes, the segment itself with its length in the last byte (so that NUL bytes are
not padding) and up to 4 ids. Long ones (up to 48 bytes, such as Russian and Hindi words): entries of 128 bytes, up to 18 ids.
Both are two-way set-associative: a new segment evicts the older of the two entries of its set.
"""

import mmap
from typing import NamedTuple

import numpy as np

from lt_preprocess.compiler.jit import inlined
from lt_preprocess.tokenizers.sentencepiece.piece_tables import Bytes, Ids, Words
from lt_preprocess.tokenizers.sentencepiece.segments import eight_bytes

SHORT_BYTES = 15
SHORT_IDS = 4
LONG_BYTES = 48
LONG_IDS = 18

_SHORT_SETS = 1 << 15
_LONG_SETS = 1 << 13
_SHORT_ENTRY = 4
_LONG_ENTRY = 16
_LONG_KEY = 1
_LONG_FIRST_ID = 7

_LARGE_PAGE = 1 << 21

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SECOND_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)
_ONE = np.uint64(1)
_ID = np.uint64(0xFFFFFFFF)
_LAST_ID = np.uint64(0x3FFFFFFF)
_SHIFT_8, _SHIFT_32, _SHIFT_56, _SHIFT_62 = np.uint64(8), np.uint64(32), np.uint64(56), np.uint64(62)
_TAG = np.uint64(0xFFFFFFFF000000FF)


class Caches(NamedTuple):
    """`short` uint64 [sets * 2 * 4]: key (2), ids (2: two in each, their number less one in the highest two bits).

    `long` uint64 [sets * 2 * 16]: length, number of ids << 8 and hash << 32; key (6); ids (9).
    """

    short: Words
    long: Words


def new_caches() -> Caches:
    """Empty caches: no segment has length 0."""
    return Caches(_zeros(_SHORT_SETS * 2 * _SHORT_ENTRY), _zeros(_LONG_SETS * 2 * _LONG_ENTRY))


def _zeros(words: int) -> Words:
    """Zeros at the start of a large page, where the system has those: an entry then costs one cache line and no TLB miss."""
    pages = mmap.mmap(-1, 8 * words + _LARGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(pages, np.uint64)
    first = -array.ctypes.data % _LARGE_PAGE // 8
    return array[first : first + words]


@inlined
def short_key(data: Bytes, start: int, end: int) -> tuple[np.uint64, np.uint64]:
    size = end - start
    low, high = eight_bytes(data, start), np.uint64(0)
    if size < 8:
        low &= (_ONE << np.uint64(8 * size)) - _ONE
    elif size > 8:
        high = eight_bytes(data, start + 8) & ((_ONE << np.uint64(8 * (size - 8))) - _ONE)
    return low, high | np.uint64(size) << _SHIFT_56


@inlined
def short_set(low: np.uint64, high: np.uint64) -> int:
    """Return the first index of a short segment's set in `Caches.short`."""
    hashed = (low ^ high * _SECOND_MULTIPLIER) * _MULTIPLIER
    hashed ^= hashed >> _SHIFT_32
    return int(np.int64(hashed & np.uint64(_SHORT_SETS - 1))) * 2 * _SHORT_ENTRY


@inlined
def find_short(cache: Words, set_start: int, low: np.uint64, high: np.uint64, output: Ids, count: int) -> int:
    """Append the ids of a segment; the new count, or `count` when it is not there. Writes up to 4 ids past `count`."""
    if cache[set_start] != low or cache[set_start + 1] != high:
        set_start += _SHORT_ENTRY
        if cache[set_start] != low or cache[set_start + 1] != high:
            return count
    first, second = cache[set_start + 2], cache[set_start + 3]
    output[count] = np.int32(first & _ID)
    output[count + 1] = np.int32(first >> _SHIFT_32)
    output[count + 2] = np.int32(second & _ID)
    output[count + 3] = np.int32((second >> _SHIFT_32) & _LAST_ID)
    return count + 1 + int(np.int64(second >> _SHIFT_62))


@inlined
def insert_short(cache: Words, set_start: int, low: np.uint64, high: np.uint64, output: Ids, first: int, count: int) -> None:
    """Insert a segment with the ids output[first:count], at most SHORT_IDS."""
    for index in range(_SHORT_ENTRY):
        cache[set_start + _SHORT_ENTRY + index] = cache[set_start + index]
    cache[set_start] = low
    cache[set_start + 1] = high
    cache[set_start + 2] = np.uint64(0)
    cache[set_start + 3] = np.uint64(count - first - 1) << _SHIFT_62
    for index in range(count - first):
        cache[set_start + 2 + (index >> 1)] |= np.uint64(output[first + index]) << np.uint64(32 * (index & 1))


@inlined
def _long_word(data: Bytes, start: int, size: int, index: int) -> np.uint64:
    """Eight bytes of a long key, zeros after its end."""
    word, remaining = eight_bytes(data, start + 8 * index), size - 8 * index
    return word if remaining >= 8 else word & ((_ONE << np.uint64(8 * remaining)) - _ONE)


@inlined
def long_tag(data: Bytes, start: int, end: int) -> np.uint64:
    """The length of a long segment, and a hash in the upper 32 bits."""
    size = end - start
    hashed = np.uint64(size)
    for index in range((size + 7) >> 3):
        hashed = (hashed ^ _long_word(data, start, size, index)) * _MULTIPLIER
        hashed ^= hashed >> _SHIFT_32
    return (hashed << _SHIFT_32) | np.uint64(size)


@inlined
def long_set(tag: np.uint64) -> int:
    """Return the first index of a long segment's set in `Caches.long`."""
    return int(np.int64((tag >> _SHIFT_32) & np.uint64(_LONG_SETS - 1))) * 2 * _LONG_ENTRY


@inlined
def find_long(cache: Words, set_start: int, tag: np.uint64, data: Bytes, start: int, end: int, output: Ids, count: int) -> int:
    """Append the ids of a segment; the new count, or `count` when it is not there."""
    size = end - start
    for entry in (set_start, set_start + _LONG_ENTRY):
        if cache[entry] & _TAG == tag:
            words, same = (size + 7) >> 3, True
            for index in range(words):
                same &= cache[entry + _LONG_KEY + index] == _long_word(data, start, size, index)
            if same:
                ids = int(np.int64((cache[entry] >> _SHIFT_8) & np.uint64(0xFF)))
                for index in range(0, ids, 2):
                    two = cache[entry + _LONG_FIRST_ID + (index >> 1)]
                    output[count + index] = np.int32(two & _ID)
                    output[count + index + 1] = np.int32(two >> _SHIFT_32)
                return count + ids
    return count


@inlined
def insert_long(
    cache: Words, set_start: int, tag: np.uint64, data: Bytes, start: int, end: int, output: Ids, first: int, count: int
) -> None:
    """Insert a segment with the ids output[first:count], at most LONG_IDS."""
    size, ids = end - start, count - first
    for index in range(_LONG_ENTRY):
        cache[set_start + _LONG_ENTRY + index] = cache[set_start + index]
    cache[set_start] = tag | np.uint64(ids) << _SHIFT_8
    for index in range((size + 7) >> 3):
        cache[set_start + _LONG_KEY + index] = _long_word(data, start, size, index)
    for index in range(0, ids, 2):
        two = np.uint64(output[first + index])
        if index + 1 < ids:
            two |= np.uint64(output[first + index + 1]) << _SHIFT_32
        cache[set_start + _LONG_FIRST_ID + (index >> 1)] = two
