"""Merge the symbols of a segment as SentencePiece does: the best rank first, and the leftmost among equal ranks.

The ranks of up to 64 characters are scanned for the smallest. Longer segments use a heap over a linked list: n log n steps for n
characters, and 32 bytes of memory for each.
"""

from typing import NamedTuple, Self

import numpy as np

from lt_preprocess.compiler.jit import inlined
from lt_preprocess.tokenizers.sentencepiece.piece_tables import ASCII_CODES, NO_MERGE, Bytes, Ids, Integers, Tables, find_merge
from lt_preprocess.tokenizers.sentencepiece.segments import code_point, width

SCANNED_CHARACTERS = 64
SCRATCH_TOO_SMALL = -1

_BLANK = ord(" ")
_NOTHING = 0x7FFFFFFFFFFFFFFF
_NODE_BITS = 40
_NODE_MASK = (1 << _NODE_BITS) - 1


class Scratch(NamedTuple):
    """Buffers to merge up to `len(symbols)` characters.

    `symbols` int32; `ranked` int64 for the scan; `merges`, `before`, `after` int32 and `heap` int64 for the heap.
    """

    symbols: Ids
    ranked: Integers
    merges: Ids
    before: Ids
    after: Ids
    heap: Integers

    @classmethod
    def of(cls, characters: int) -> Self:
        four = (np.empty(characters, np.int32) for _ in range(4))
        symbols, merges, before, after = four
        return cls(symbols, np.empty(SCANNED_CHARACTERS, np.int64), merges, before, after, np.empty(2 * characters, np.int64))


@inlined
def emit(tables: Tables, symbol: int, output: Ids, count: int) -> int:
    """Append a symbol's id; for a character that is no piece its bytes' ids, or the unknown id. Returns the new count."""
    if symbol < len(tables.ids):
        output[count] = tables.ids[symbol]
        return count + 1
    if len(tables.byte_ids) == 0:
        output[count] = tables.unknown
        return count + 1
    code = symbol - len(tables.ids)
    if code < 0x80:
        output[count] = tables.byte_ids[code]
        return count + 1
    size = 2 if code < 0x800 else 3 if code < 0x10000 else 4
    lead = 0xC0 if size == 2 else 0xE0 if size == 3 else 0xF0
    output[count] = tables.byte_ids[lead | code >> 6 * (size - 1)]
    for index in range(1, size):
        output[count + index] = tables.byte_ids[0x80 | (code >> 6 * (size - 1 - index) & 0x3F)]
    return count + size


@inlined
def _merge_scanning(tables: Tables, scratch: Scratch, size: int, output: Ids, count: int) -> int:
    """Merge scratch.symbols[:size]. `scratch.ranked` holds rank << 32 | merge for each symbol and its neighbour."""
    symbols, merges = scratch.symbols, scratch.ranked
    while size > 1:
        best, at = _NOTHING, 0
        for index in range(size - 1):
            if merges[index] >> 32 < best >> 32:
                best, at = merges[index], index
        if best == _NOTHING:
            break
        symbols[at] = tables.results[best & 0xFFFFFFFF]
        size -= 1
        for index in range(at + 1, size):
            symbols[index] = symbols[index + 1]
            merges[index - 1] = merges[index]
        if at + 1 < size:
            merges[at] = _ranked(tables, find_merge(tables, symbols[at], symbols[at + 1]))
        if at > 0:
            merges[at - 1] = _ranked(tables, find_merge(tables, symbols[at - 1], symbols[at]))
    for index in range(size):
        count = emit(tables, symbols[index], output, count)
    return count


@inlined
def _ranked(tables: Tables, merge: int) -> int:
    return _NOTHING if merge == NO_MERGE else int(tables.ranks[merge]) << 32 | merge


@inlined
def _push(heap: Integers, size: int, entry: int) -> None:
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent] <= entry:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = entry


@inlined
def _pop(heap: Integers, size: int) -> None:
    """Remove the first of `size` entries."""
    entry = heap[size - 1]
    at, child = 0, 1
    while child < size - 1:
        if child + 2 < size and heap[child + 1] < heap[child]:
            child += 1
        if entry <= heap[child]:
            break
        heap[at] = heap[child]
        at, child = child, 2 * child + 1
    heap[at] = entry


@inlined
def _merge_with_heap(tables: Tables, scratch: Scratch, size: int, output: Ids, count: int) -> int:
    """Nodes are characters. A heap entry is rank << 40 | node, stale when the node merges into something else by now.

    Each merge takes one entry and adds at most two, and there are at most size - 1 merges: 2 * size entries are enough.
    """
    symbols, merges, heap = scratch.symbols, scratch.merges, scratch.heap
    before, after = scratch.before, scratch.after
    entries = 0
    for index in range(size):
        before[index], after[index] = index - 1, index + 1
    for index in range(size):
        merges[index] = find_merge(tables, symbols[index], symbols[index + 1]) if index + 1 < size else NO_MERGE
        if merges[index] != NO_MERGE:
            _push(heap, entries, int(tables.ranks[merges[index]]) << _NODE_BITS | index)
            entries += 1
    while entries > 0:
        rank, node = heap[0] >> _NODE_BITS, heap[0] & _NODE_MASK
        _pop(heap, entries)
        entries -= 1
        if merges[node] == NO_MERGE or tables.ranks[merges[node]] != rank:
            continue
        absorbed, symbols[node] = after[node], tables.results[merges[node]]
        merges[absorbed] = merges[node] = NO_MERGE
        after[node] = after[absorbed]
        previous, following = before[node], after[node]
        if following < size:
            before[following] = node
            merges[node] = find_merge(tables, symbols[node], symbols[following])
            if merges[node] != NO_MERGE:
                _push(heap, entries, int(tables.ranks[merges[node]]) << _NODE_BITS | node)
                entries += 1
        if previous >= 0:
            merges[previous] = find_merge(tables, symbols[previous], symbols[node])
            if merges[previous] != NO_MERGE:
                _push(heap, entries, int(tables.ranks[merges[previous]]) << _NODE_BITS | previous)
                entries += 1
    node = 0
    while node < size:
        count = emit(tables, symbols[node], output, count)
        node = after[node]
    return count


@inlined
def merge(tables: Tables, scratch: Scratch, data: Bytes, start: int, end: int, prefixed: bool, output: Ids, count: int) -> int:
    """Append the ids of the segment data[start:end], `prefixed` with a space or not; returns the new count.

    SCRATCH_TOO_SMALL for a segment of more characters than `scratch` holds.
    """
    size = int(prefixed)
    scratch.symbols[0] = tables.symbols[_BLANK]
    left = _BLANK
    while start < end:
        if size == len(scratch.symbols):
            return SCRATCH_TOO_SMALL
        right = code_point(data, start)
        scratch.symbols[size] = tables.symbols[right]
        if 0 < size < SCANNED_CHARACTERS:
            if left < ASCII_CODES and right < ASCII_CODES:
                number = int(tables.ascii_pairs[left * ASCII_CODES + right])
            else:
                number = find_merge(tables, scratch.symbols[size - 1], scratch.symbols[size])
            scratch.ranked[size - 1] = _ranked(tables, number)
        start += width(data[start])
        left = right
        size += 1
    if size <= SCANNED_CHARACTERS:
        return _merge_scanning(tables, scratch, size, output, count)
    return _merge_with_heap(tables, scratch, size, output, count)
