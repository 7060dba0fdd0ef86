r"""Split UTF-8 text into the pieces within which byte pairs are merged, as GPT-2's and Llama 3's regular expressions do.

GPT-2:    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
Llama 3:  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
          \s*[\r\n]+|\s+(?!\S)|\s+

Each function tries the alternatives in the pattern's order and returns where the piece that starts at `start` ends. No
alternative needs more than one character of backtracking, so the scan is linear, where a regular expression engine spends most
of the time of an encoder. Arguments: `data` uint8 [bytes], valid UTF-8 between `start` and `end`; `classes` from
`character_classes.table`.
"""

import numpy as np
import numpy.typing as npt

from lt_preprocess.character_classes import LETTER, NEWLINE, NUMBER, OTHER, SPACE
from lt_preprocess.compilation import inner

Bytes = npt.NDArray[np.uint8]

GPT2 = 0
LLAMA3 = 1

_APOSTROPHE = ord("'")
_BLANK = ord(" ")
_S, _T, _M, _D, _R, _V, _L, _E = (ord(letter) for letter in "stmdrvle")
_LONG_S = (0xC5, 0xBF)


@inner
def _width(first_byte: np.uint8) -> int:
    """Bytes of the UTF-8 character that starts with `first_byte`."""
    if first_byte < 0x80:
        return 1
    if first_byte < 0xE0:
        return 2
    return 3 if first_byte < 0xF0 else 4


@inner
def _code_point(data: Bytes, at: int) -> np.int64:
    first = np.int64(data[at])
    if first < 0x80:
        return first
    if first < 0xE0:
        return (first & 0x1F) << 6 | np.int64(data[at + 1] & 0x3F)
    if first < 0xF0:
        return (first & 0x0F) << 12 | np.int64(data[at + 1] & 0x3F) << 6 | np.int64(data[at + 2] & 0x3F)
    upper = (first & 0x07) << 18 | np.int64(data[at + 1] & 0x3F) << 12
    return upper | np.int64(data[at + 2] & 0x3F) << 6 | np.int64(data[at + 3] & 0x3F)


@inner
def _class_at(data: Bytes, at: int, classes: Bytes) -> np.uint8:
    return np.uint8(classes[_code_point(data, at)])


@inner
def _run_end(data: Bytes, at: int, end: int, classes: Bytes, wanted: int | np.uint8) -> int:
    """The end of the run of characters of one class."""
    while at < end and _class_at(data, at, classes) == wanted:
        at += _width(data[at])
    return at


@inner
def _contraction_end(data: Bytes, start: int, end: int, lower: int) -> int:
    """The end of 's, 't, 'm, 'd, 're, 've or 'll after an apostrophe, or `start`.

    `lower` 0x20 ignores case as Unicode folds it (U+017F is an s), 0 does not.
    """
    if start + 1 >= end:
        return start
    first = data[start + 1] | lower
    if first in (_S, _T, _M, _D):
        return start + 2
    if start + 2 >= end:
        return start
    if lower and data[start + 1] == _LONG_S[0] and data[start + 2] == _LONG_S[1]:
        return start + 3
    second = data[start + 2] | lower
    if (second == _E and first in (_R, _V)) or (second == _L and first == _L):
        return start + 3
    return start


@inner
def _white_space_end(data: Bytes, start: int, end: int, classes: Bytes, stop_after_newline: bool) -> int:
    r"""`\s+(?!\S)|\s+`: a run leaves its last character to what follows, unless it is the whole run or ends the text.

    With `stop_after_newline`, `\s*[\r\n]+` comes first: the piece ends after the last line break of the run.
    """
    at, last, newline_end = start, start, start
    while at < end:
        kind = _class_at(data, at, classes)
        if kind != SPACE and kind != NEWLINE:
            break
        last = at
        at += _width(data[at])
        if kind == NEWLINE:
            newline_end = at
    if stop_after_newline and newline_end > start:
        return newline_end
    return at if at == end or last == start else last


@inner
def gpt2_end(data: Bytes, start: int, end: int, classes: Bytes) -> int:
    first = data[start]
    if first == _APOSTROPHE:
        stop = _contraction_end(data, start, end, 0)
        if stop > start:
            return stop
    at = start + 1 if first == _BLANK else start
    if at < end:
        kind = _class_at(data, at, classes)
        if kind != SPACE and kind != NEWLINE:
            return _run_end(data, at + _width(data[at]), end, classes, kind)
    return _white_space_end(data, start, end, classes, False)


@inner
def llama3_end(data: Bytes, start: int, end: int, classes: Bytes) -> int:
    first = data[start]
    if first == _APOSTROPHE:
        stop = _contraction_end(data, start, end, 0x20)
        if stop > start:
            return stop
    kind = _class_at(data, start, classes)
    second = start + _width(first)
    if kind == LETTER:
        return _run_end(data, second, end, classes, LETTER)
    if kind == NUMBER:
        at = second
        for _ in range(2):
            if at < end and _class_at(data, at, classes) == NUMBER:
                at += _width(data[at])
        return at
    following = _class_at(data, second, classes) if second < end else SPACE
    if following == LETTER and kind != NEWLINE:
        return _run_end(data, second, end, classes, LETTER)
    if kind == OTHER or (first == _BLANK and following == OTHER):
        at = _run_end(data, second, end, classes, OTHER)
        return _run_end(data, at, end, classes, NEWLINE)
    return _white_space_end(data, start, end, classes, True)


@inner
def piece_end(pattern: int, data: Bytes, start: int, end: int, classes: Bytes) -> int:
    """Where the piece at `start` ends; more than `start` and at most `end`."""
    if pattern == GPT2:
        return gpt2_end(data, start, end, classes)
    return llama3_end(data, start, end, classes)
