"""One character of UTF-8 text at a time, for compiled code: its width, its class, and the contractions that words are cut at.

No code searches a tuple with `in`: numba compiles a function for every length of a tuple.
"""

import numpy as np

from lt_preprocess.compiler.intrinsics import load8, signed
from lt_preprocess.compiler.jit import inner
from lt_preprocess.tokenizers.bpe.character_classes import NEWLINE, SPACE

_S, _T, _M, _D, _R, _V, _L, _E = (ord(letter) for letter in "stmdrvle")
_LONG_S = (0xC5, 0xBF)


@inner
def width(first_byte: np.uint8) -> int:
    """Bytes of the UTF-8 character that starts with `first_byte`."""
    if first_byte < 0x80:
        return 1
    if first_byte < 0xE0:
        return 2
    return 3 if first_byte < 0xF0 else 4


@inner
def code_point(at: int) -> int:
    """Decode the UTF-8 character at the address `at`."""
    first = signed(load8(at))
    if first < 0x80:
        return first
    if first < 0xE0:
        return (first & 0x1F) << 6 | signed(load8(at + 1) & 0x3F)
    if first < 0xF0:
        return (first & 0x0F) << 12 | signed(load8(at + 1) & 0x3F) << 6 | signed(load8(at + 2) & 0x3F)
    upper = (first & 0x07) << 18 | signed(load8(at + 1) & 0x3F) << 12
    return upper | signed(load8(at + 2) & 0x3F) << 6 | signed(load8(at + 3) & 0x3F)


@inner
def class_at(at: int, classes: int) -> np.uint8:
    return np.uint8(load8(classes + code_point(at)))


@inner
def is_white_space(at: int, classes: int) -> np.bool_:
    kind = class_at(at, classes)
    return SPACE <= kind <= NEWLINE


@inner
def contraction_end(start: int, end: int, lower: int) -> int:
    """The end of 's, 't, 'm, 'd, 're, 've or 'll after an apostrophe, or `start`.

    `lower` 0x20 ignores case as Unicode folds it (U+017F is an s), 0 does not.
    """
    if start + 1 >= end:
        return start
    first = load8(start + 1) | lower
    if (first == _S) | (first == _T) | (first == _M) | (first == _D):
        return start + 2
    if start + 2 >= end:
        return start
    if lower and load8(start + 1) == _LONG_S[0] and load8(start + 2) == _LONG_S[1]:
        return start + 3
    second = load8(start + 2) | lower
    if (second == _E and (first == _R) | (first == _V)) or (second == _L and first == _L):
        return start + 3
    return start
