"""Cut UTF-8 text where no symbol can span the cut, so that each segment is merged alone, and may be cached.

Why this is exact: a merge makes a symbol whose text is a piece. Two characters that are neighbours inside no piece are therefore
never in one symbol, whatever merges happen on either side. Merges on one side of such a boundary do not change the possible
merges on the other side, and the order of merging (best score, then leftmost) within a segment is the same with and without the
rest of the text. So the text may be cut there. It need not be cut at every such boundary: between ASCII letters it never is, so
that eight bytes are compared at once. Since pieces hold U+2581 at their start or in pure runs only, nearly all words are cut
before the space; in Chinese nearly every character is a segment.
"""

import numpy as np

from lt_preprocess.compiler.jit import inlined
from lt_preprocess.tokenizers.sentencepiece.piece_tables import Bytes, Tables

_BYTE_SHIFTS = tuple(np.uint64(8 * index) for index in range(8))
_OFFSETS = tuple(np.uint64(index) for index in range(8))
_EACH_BYTE = 0x0101010101010101
_ONES = np.uint64(_EACH_BYTE)
_ONE = np.uint64(1)
_LOWER_CASE = np.uint64(0x20 * _EACH_BYTE)
_HIGH_BITS = np.uint64(0x80 * _EACH_BYTE)
_A = np.uint64(ord("a") * _EACH_BYTE)
_AFTER_Z = np.uint64((ord("z") + 1) * _EACH_BYTE)
_SEVEN = np.uint64(7)
_LAST_BYTE = np.uint64(56)
_BLANK = ord(" ")
_LOWER_A, _LOWER_Z = ord("a"), ord("z")


@inlined
def eight_bytes(data: Bytes, at: int) -> np.uint64:
    """Eight bytes as a little-endian integer; written out so that it compiles to one load."""
    first = np.uint64(at)
    value = np.uint64(data[first])
    value |= np.uint64(data[first + _OFFSETS[1]]) << _BYTE_SHIFTS[1]
    value |= np.uint64(data[first + _OFFSETS[2]]) << _BYTE_SHIFTS[2]
    value |= np.uint64(data[first + _OFFSETS[3]]) << _BYTE_SHIFTS[3]
    value |= np.uint64(data[first + _OFFSETS[4]]) << _BYTE_SHIFTS[4]
    value |= np.uint64(data[first + _OFFSETS[5]]) << _BYTE_SHIFTS[5]
    value |= np.uint64(data[first + _OFFSETS[6]]) << _BYTE_SHIFTS[6]
    value |= np.uint64(data[first + _OFFSETS[7]]) << _BYTE_SHIFTS[7]
    return value


@inlined
def width(first_byte: int | np.uint8) -> int:
    """Bytes of the UTF-8 character that starts with `first_byte`."""
    if first_byte < 0x80:
        return 1
    if first_byte < 0xE0:
        return 2
    return 3 if first_byte < 0xF0 else 4


@inlined
def code_point(data: Bytes, at: int) -> int:
    first = int(data[at])
    if first < 0x80:
        return first
    if first < 0xE0:
        return (first & 0x1F) << 6 | int(data[at + 1] & 0x3F)
    if first < 0xF0:
        return (first & 0x0F) << 12 | int(data[at + 1] & 0x3F) << 6 | int(data[at + 2] & 0x3F)
    upper = (first & 0x07) << 18 | int(data[at + 1] & 0x3F) << 12
    return upper | int(data[at + 2] & 0x3F) << 6 | int(data[at + 3] & 0x3F)


@inlined
def _letters(word: np.uint64) -> int:
    """How many of the eight bytes, from the first, are ASCII letters. The sums cannot carry from one byte to the next."""
    raised = word | _LOWER_CASE | _HIGH_BITS
    not_ascii_letters = ((~(raised - _A) | (raised - _AFTER_Z) | word) & _HIGH_BITS) >> _SEVEN
    before = (not_ascii_letters - _ONE) & ~not_ascii_letters & _ONES
    return int(np.int64((before * _ONES) >> _LAST_BYTE))


@inlined
def _letters_end(data: Bytes, at: int, end: int) -> int:
    """The end of the run of ASCII letters at `at`."""
    while at < end:
        run = _letters(eight_bytes(data, at))
        at += run
        if run < 8:
            break
    return min(at, end)


@inlined
def _is_letter(byte: int | np.uint8) -> bool:
    return bool(_LOWER_A <= (byte | 0x20) <= _LOWER_Z)


@inlined
def are_neighbours(tables: Tables, left_class: int, right_class: int) -> bool:
    bit = left_class << tables.class_bits | right_class
    return bool((tables.neighbours[bit >> 6] >> np.uint64(bit & 63)) & _ONE)


@inlined
def segment_end(tables: Tables, data: Bytes, start: int, end: int) -> int:
    """Where the segment at `start` ends; more than `start`, at most `end`. Reads up to 8 bytes past `end`."""
    first = data[start]
    at = start + width(first)
    if first == _BLANK or _is_letter(first):
        at = _letters_end(data, at, end)
        left = int(tables.classes[data[at - 1]])
    else:
        left = int(tables.classes[code_point(data, start)])
    while at < end:
        right = int(tables.classes[code_point(data, at)])
        if not are_neighbours(tables, left, right):
            break
        following = data[at]
        at += width(following)
        left = right
        if _is_letter(following):
            at = _letters_end(data, at, end)
            left = int(tables.classes[data[at - 1]])
    return at
