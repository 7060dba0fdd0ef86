"""Byte-pair merging of one word, compiled: the lowest rank first, the leftmost of equals, until no pair merges.

A word of up to SCANNED_BYTES bytes has an array with the ranks of neighbouring pairs: vector instructions find the smallest rank
and merge two lanes, all stores as wide as the loads. `single_words` has the way of longer words.

Several words are merged in turns, a merge of each word at a time: a merge waits for its look-ups, and the next look-ups of a word
depend on them. While the processor waits for one word's tables, it merges the others.

Look-ups: the ranks of byte pairs are an array. Other pairs are packed with their rank into eight bytes, eight pairs to a bucket;
a bucket is a cache line, which one vector instruction compares. Four in five looked-up pairs do not merge: a Bloom filter with
one hash, small enough for the L2 cache, sends most of them to one empty bucket instead of a line in the large table. Neither
needs a branch, which the processor could not predict. For Llama 3's 280,147 pairs and the English words that miss
the word cache, a word takes 1.2 us with a table alone, 0.7 us with the filter and half the table."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.compiler.intrinsics import (
    address,
    aligned,
    load8,
    load32,
    load64,
    prefetch,
    signed,
    store32,
    store64,
    trailing_zeros,
)
from lt_preprocess.compiler.jit import inner, kernel
from lt_preprocess.compiler.simd import LANES, equal_after_shift, fill_lanes, lane_min, merge_lanes

Ids = npt.NDArray[np.int32]
Ranks = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

SCANNED_BYTES = 256
HIGHEST_ID = (1 << 20) - 2
HIGHEST_RANK = (1 << 24) - 2

NO_RANK = np.uint32(0xFFFFFFFF)
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_ID_BITS = np.uint64(20)
_RANK_BITS = np.uint64(24)
_RANK_MASK = np.uint64((1 << 24) - 1)
_BUCKET_BYTES = 64
_PAIRS_PER_BUCKET = 5
_BITS_PER_BUCKET = 32
_ONE = np.uint64(1)
_SIX = np.uint64(6)
_BIT_MASK = np.uint64(63)
# Beyond a word: no pair has it, because it is above HIGHEST_ID.
_NO_ID = np.uint32(HIGHEST_ID + 1)

WORDS_IN_TURNS = 16
# A word that is being merged. In uint64: its number of ids; the place of its next merge; the pairs of the merged id with its
# neighbours, and the buckets of these pairs; the caller's number. Then LANES unused uint32, its ids, and its ranks.
_SIZE, _AT, _LEFT_PAIR, _RIGHT_PAIR, _LEFT_BUCKET, _RIGHT_BUCKET, _SOURCE = range(0, 56, 8)
_SCRATCH_LANES = SCANNED_BYTES + 3 * LANES
_IDS = 128
_RANKS = _IDS + 4 * _SCRATCH_LANES
WORD_BYTES = _RANKS + 4 * _SCRATCH_LANES


class MergeTables(NamedTuple):
    """The merges of a vocabulary, with their arrays.

    `byte_ids` int32 [256]; `byte_pairs` uint32 [65536], rank or all ones; `pairs` uint64 [8 * buckets + 8], left id, right id and
    rank, or all ones, with an empty bucket at the end; `pair_filter` uint64, one bit per pair's hash; `merged_ids` int32
    [ranks], the id that a merge of this rank makes; `id_minus_rank` is the difference if it is the same for every merge, else -1.
    """

    byte_ids: Ids
    byte_pairs: Ranks
    pairs: Words
    pair_filter: Words
    merged_ids: Ids
    id_minus_rank: int

    def addresses(self) -> "Merges":
        buckets_bytes = self.pairs.nbytes - _BUCKET_BYTES
        return Merges(
            address(self.byte_ids),
            address(self.byte_pairs),
            address(self.pairs),
            buckets_bytes - _BUCKET_BYTES,
            address(self.pairs) + buckets_bytes,
            address(self.pair_filter),
            np.uint64(64 - (64 * len(self.pair_filter) - 1).bit_length()),
            address(self.merged_ids),
            self.id_minus_rank,
        )


class Merges(NamedTuple):
    """The addresses of `MergeTables`; `pairs_mask` masks the offset of a bucket, `filter_shift` makes a bit index of a hash."""

    byte_ids: int
    byte_pairs: int
    pairs: int
    pairs_mask: int
    empty_bucket: int
    pair_filter: int
    filter_shift: np.uint64
    merged_ids: int
    id_minus_rank: int


def build(byte_ids: Ids, rows: Integers) -> MergeTables:
    """From rows [merges, 4] of left id, right id, rank, merged id; no id above HIGHEST_ID, no rank above HIGHEST_RANK."""
    buckets = 1 << max(2, (len(rows) // _PAIRS_PER_BUCKET).bit_length())
    merged = np.zeros(int(rows[:, 2].max(initial=0)) + 1, np.int32)
    merged[rows[:, 2]] = rows[:, 3]
    tables = MergeTables(
        byte_ids,
        np.zeros(1 << 16, np.uint32),
        aligned(8 * buckets + 8, int(_EMPTY)),
        np.zeros(max(1, _BITS_PER_BUCKET * buckets // 64), np.uint64),
        merged,
        _id_minus_rank(rows),
    )
    rows = np.ascontiguousarray(rows)
    _fill(tables.addresses(), address(rows), len(rows))
    return tables


def _id_minus_rank(rows: Integers) -> int:
    """The difference of merged id and rank where it is the same for all merges, so that no table is needed; else -1."""
    differences = rows[:, 3] - rows[:, 2]
    return int(differences[0]) if len(rows) and differences.min() == differences.max() >= 0 else -1


@inner
def merged_id(tables: Merges, rank: np.uint32) -> np.uint32:
    """The id that a merge of this rank makes."""
    if tables.id_minus_rank >= 0:
        return np.uint32(rank + np.uint32(tables.id_minus_rank))
    return load32(tables.merged_ids + 4 * signed(rank))


@inner
def _prefetch_merged(tables: Merges, rank: np.uint32) -> None:
    if tables.id_minus_rank < 0:
        prefetch(tables.merged_ids + 4 * (signed(rank) if rank != NO_RANK else 0))


@inner
def _hashed(left: np.uint64, right: np.uint64) -> tuple[np.uint64, np.uint64]:
    """The key of a pair and its hash."""
    key = left << _ID_BITS | right
    return key, key * _MULTIPLIER


@inner
def _bucket_of(tables: Merges, hashed: np.uint64) -> int:
    """Return the address of the first bucket that may hold a pair."""
    return tables.pairs + (signed(hashed >> np.uint64(30)) & tables.pairs_mask)


@inner
def _next_bucket(tables: Merges, bucket: int) -> int:
    return tables.pairs + ((bucket - tables.pairs + _BUCKET_BYTES) & tables.pairs_mask)


@kernel
def _fill(tables: Merges, rows: int, count: int) -> None:
    for row in range(rows, rows + 32 * count, 32):
        key, hashed = _hashed(load64(row), load64(row + 8))
        bucket = _bucket_of(tables, hashed)
        while load64(bucket + _BUCKET_BYTES - 8) != _EMPTY:
            bucket = _next_bucket(tables, bucket)
        while load64(bucket) != _EMPTY:
            bucket += 8
        store64(bucket, key << _RANK_BITS | load64(row + 16))
        bit = hashed >> tables.filter_shift
        filter_word = tables.pair_filter + 8 * signed(bit >> _SIX)
        store64(filter_word, load64(filter_word) | _ONE << (bit & _BIT_MASK))
    for left in range(256):
        for right in range(256):
            rank = rank_of(tables, load32(tables.byte_ids + 4 * left), load32(tables.byte_ids + 4 * right))
            store32(tables.byte_pairs + 4 * (left << 8 | right), rank)


@inner
def _filter_word(tables: Merges, hashed: np.uint64) -> int:
    """Return the address of the filter's word with a pair's bit."""
    return tables.pair_filter + 8 * signed(hashed >> tables.filter_shift >> _SIX)


@inner
def _first_bucket(tables: Merges, hashed: np.uint64) -> int:
    """Return the address of the bucket to search for a pair: the empty one if the filter does not have it."""
    may_merge = load64(_filter_word(tables, hashed)) >> (hashed >> tables.filter_shift & _BIT_MASK) & _ONE
    return _bucket_of(tables, hashed) if may_merge else tables.empty_bucket


@inner
def _rank_in(tables: Merges, bucket: int, key: np.uint64) -> np.uint32:
    """Return the rank of the pair `key`, searched from this bucket on; all ones if it does not merge."""
    matches = equal_after_shift(bucket, _RANK_BITS, key)
    while (matches == 0) & (load64(bucket + _BUCKET_BYTES - 8) != _EMPTY):
        bucket = _next_bucket(tables, bucket)
        matches = equal_after_shift(bucket, _RANK_BITS, key)
    entry = load64(bucket + 8 * (trailing_zeros(matches) & 7))
    return np.uint32(entry & _RANK_MASK) if matches else NO_RANK


@inner
def rank_of(tables: Merges, left: np.uint32, right: np.uint32) -> np.uint32:
    """Return the merge rank of two neighbouring ids; all ones if they do not merge."""
    key, hashed = _hashed(np.uint64(left), np.uint64(right))
    return _rank_in(tables, _first_bucket(tables, hashed), key)


def new_scratch() -> Words:
    """Allocate a thread's buffer for merging: WORDS_IN_TURNS words, then their addresses."""
    return aligned((WORD_BYTES + 8) * WORDS_IN_TURNS // 8)


@inner
def words_in_turns(scratch: int) -> int:
    """Return the address of the list of addresses that `merge_words` takes."""
    return scratch + WORD_BYTES * WORDS_IN_TURNS


@inner
def source_of(word: int) -> int:
    """Return what `start_word` was told."""
    return signed(load64(word + _SOURCE))


@inner
def ids_of(word: int) -> tuple[int, int]:
    """Return the address of a word's ids, and their number."""
    return word + _IDS, signed(load64(word + _SIZE))


@inner
def start_word(tables: Merges, word: int, start: int, size: int, source: int) -> None:
    """Let a word's ids be those of its bytes, of which there are at most SCANNED_BYTES."""
    # Both ends of the word have a neighbour that merges with nothing, so that no merge is a special case.
    ids, ranks = word + _IDS, word + _RANKS
    store64(word + _SIZE, np.uint64(size))
    store64(word + _SOURCE, np.uint64(source))
    store32(ids - 4, _NO_ID)
    first_unused = size & -LANES
    for index in range(first_unused, first_unused + 2 * LANES, LANES):
        fill_lanes(ids + 4 * index, _NO_ID)
        fill_lanes(ranks + 4 * index, NO_RANK)
    for index in range(size):
        store32(ids + 4 * index, load32(tables.byte_ids + 4 * signed(load8(start + index))))
    for index in range(size - 1):
        pair = signed(load8(start + index)) << 8 | signed(load8(start + index + 1))
        store32(ranks + 4 * index, load32(tables.byte_pairs + 4 * pair))
    store32(ranks + 4 * (size - 1), NO_RANK)


@inner
def _choose_merge(tables: Merges, word: int) -> bool:
    """Find a word's next merge and prefetch the ranks of the pairs that it makes; returns whether there is one."""
    ids, ranks, size = word + _IDS, word + _RANKS, signed(load64(word + _SIZE))
    best, at = lane_min(ranks)
    for first in range(LANES, size - 1, LANES):
        other, lane = lane_min(ranks + 4 * first)
        if other < best:
            best, at = other, first + lane
    if best == NO_RANK:
        return False
    new = np.uint64(merged_id(tables, best))
    left_pair, left_hash = _hashed(np.uint64(load32(ids + 4 * at - 4)), new)
    right_pair, right_hash = _hashed(new, np.uint64(load32(ids + 4 * at + 8)))
    prefetch(_filter_word(tables, left_hash))
    prefetch(_filter_word(tables, right_hash))
    store64(word + _AT, np.uint64(at))
    store64(word + _LEFT_PAIR, left_pair)
    store64(word + _RIGHT_PAIR, right_pair)
    return True


@inner
def _choose_buckets(tables: Merges, word: int) -> None:
    """Find the buckets of the pairs that the chosen merge makes, and prefetch them."""
    left_bucket = _first_bucket(tables, load64(word + _LEFT_PAIR) * _MULTIPLIER)
    right_bucket = _first_bucket(tables, load64(word + _RIGHT_PAIR) * _MULTIPLIER)
    prefetch(left_bucket)
    prefetch(right_bucket)
    store64(word + _LEFT_BUCKET, np.uint64(left_bucket))
    store64(word + _RIGHT_BUCKET, np.uint64(right_bucket))


@inner
def _apply_merge(tables: Merges, word: int) -> None:
    """Do the merge that was chosen."""
    ids, ranks, size, at = word + _IDS, word + _RANKS, signed(load64(word + _SIZE)), signed(load64(word + _AT))
    left_pair, right_pair = load64(word + _LEFT_PAIR), load64(word + _RIGHT_PAIR)
    left, new = np.uint32(left_pair >> _ID_BITS), np.uint32(right_pair >> _ID_BITS)
    left_rank = _rank_in(tables, signed(load64(word + _LEFT_BUCKET)), left_pair)
    right_rank = _rank_in(tables, signed(load64(word + _RIGHT_BUCKET)), right_pair)
    # One of the next merges may need an id that it makes.
    _prefetch_merged(tables, left_rank)
    _prefetch_merged(tables, right_rank)
    for index in range(max(at - 1, 0) & -LANES, size, LANES):
        merge_lanes(ids + 4 * index, at - index, left, new)
        merge_lanes(ranks + 4 * index, at - index, left_rank, right_rank)
    store64(word + _SIZE, np.uint64(size - 1))


@inner
def merge_words(tables: Merges, words: int, count: int) -> None:
    """Merge `count` words that `start_word` has started, whose addresses are at `words`, until no pair merges."""
    while count > 0:
        index = 0
        while index < count:
            word = load64(words + 8 * index)
            if _choose_merge(tables, signed(word)):
                index += 1
            else:
                count -= 1
                store64(words + 8 * index, load64(words + 8 * count))
                store64(words + 8 * count, word)
        for index in range(count):
            _choose_buckets(tables, signed(load64(words + 8 * index)))
        for index in range(count):
            _apply_merge(tables, signed(load64(words + 8 * index)))
