"""Merge the bytes of one word by itself, compiled: a short word as `merges` does in turns, a long one with a heap.

The heap lies over a linked list of ids: n log n steps for n bytes, where `merges` takes n squared.
"""

import numpy as np

from lt_preprocess.compiler.intrinsics import allocate, load8, load32, load64, release, signed, store32, store64
from lt_preprocess.compiler.jit import inner
from lt_preprocess.compiler.simd import LANES, copy_lanes
from lt_preprocess.tokenizers.bpe.merges import (
    NO_RANK,
    SCANNED_BYTES,
    Merges,
    ids_of,
    merge_words,
    merged_id,
    rank_of,
    start_word,
    words_in_turns,
)

_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)
# A node of a long word, four uint32.
_NODE_BYTES = 16
_ID, _PAIR_RANK, _BEFORE, _AFTER = range(0, _NODE_BYTES, 4)


@inner
def _push(heap: int, size: int, entry: np.uint64) -> None:
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if load64(heap + 8 * parent) <= entry:
            break
        store64(heap + 8 * at, load64(heap + 8 * parent))
        at = parent
    store64(heap + 8 * at, entry)


@inner
def _pop(heap: int, size: int) -> None:
    """Remove the first of `size` entries."""
    entry = load64(heap + 8 * size - 8)
    at, child = 0, 1
    while child < size - 1:
        if child + 2 < size and load64(heap + 8 * child + 8) < load64(heap + 8 * child):
            child += 1
        if entry <= load64(heap + 8 * child):
            break
        store64(heap + 8 * at, load64(heap + 8 * child))
        at, child = child, 2 * child + 1
    store64(heap + 8 * at, entry)


@inner
def _push_pair(nodes: int, heap: int, size: int, node: int, rank: np.uint32) -> int:
    """Let a node's pair have this rank; returns the new size of the heap."""
    store32(nodes + _NODE_BYTES * node + _PAIR_RANK, rank)
    if rank == NO_RANK:
        return size
    _push(heap, size, np.uint64(rank) << _HALF | np.uint64(node))
    return size + 1


@inner
def _merge_with_heap(tables: Merges, start: int, size: int, output: int) -> int:
    """Nodes are byte positions; a heap entry, rank << 32 | node, is stale when its node's pair has another rank by now.

    Each merge takes an entry and adds at most two, and there are at most size - 1 merges: 2 * size entries are enough.
    """
    nodes = allocate((_NODE_BYTES + 16) * size)
    heap = nodes + _NODE_BYTES * size
    entries = 0
    for index in range(size):
        node = nodes + _NODE_BYTES * index
        store32(node + _ID, load32(tables.byte_ids + 4 * signed(load8(start + index))))
        store32(node + _BEFORE, np.uint32(index - 1))
        store32(node + _AFTER, np.uint32(index + 1))
    for index in range(size):
        entries = _push_pair(nodes, heap, entries, index, _rank_at(tables, nodes, index, size))
    while entries > 0:
        first = load64(heap)
        _pop(heap, entries)
        entries -= 1
        index = signed(first & _LOW_HALF)
        node = nodes + _NODE_BYTES * index
        rank = np.uint32(first >> _HALF)
        if load32(node + _PAIR_RANK) != rank:
            continue
        absorbed = nodes + _NODE_BYTES * signed(load32(node + _AFTER))
        following = signed(load32(absorbed + _AFTER))
        store32(node + _ID, merged_id(tables, rank))
        store32(absorbed + _PAIR_RANK, NO_RANK)
        store32(node + _AFTER, np.uint32(following))
        if following < size:
            store32(nodes + _NODE_BYTES * following + _BEFORE, np.uint32(index))
        entries = _push_pair(nodes, heap, entries, index, _rank_at(tables, nodes, index, size))
        if index > 0:
            previous = signed(load32(node + _BEFORE))
            entries = _push_pair(nodes, heap, entries, previous, _rank_at(tables, nodes, previous, size))
    index, count = 0, 0
    while index < size:
        store32(output + 4 * count, load32(nodes + _NODE_BYTES * index + _ID))
        count += 1
        index = signed(load32(nodes + _NODE_BYTES * index + _AFTER))
    release(nodes)
    return count


@inner
def _rank_at(tables: Merges, nodes: int, index: int, size: int) -> np.uint32:
    """Return the merge rank of a node and the next node."""
    node = nodes + _NODE_BYTES * index
    following = signed(load32(node + _AFTER))
    if following >= size:
        return NO_RANK
    return rank_of(tables, load32(node + _ID), load32(nodes + _NODE_BYTES * following + _ID))


@inner
def merge(tables: Merges, start: int, size: int, scratch: int, output: int) -> int:
    """Write the ids of a word to `output`, where LANES more may be overwritten; returns their number."""
    if size > SCANNED_BYTES:
        return _merge_with_heap(tables, start, size, output)
    words = words_in_turns(scratch)
    store64(words, np.uint64(scratch))
    start_word(tables, scratch, start, size, 0)
    merge_words(tables, words, 1)
    ids, count = ids_of(scratch)
    for index in range(0, count, LANES):
        copy_lanes(ids + 4 * index, output + 4 * index)
    return count
