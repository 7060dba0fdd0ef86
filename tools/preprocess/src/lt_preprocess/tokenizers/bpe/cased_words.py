r"""Words as Tekken (Mistral), o200k (OpenAI) and Kimi cut them, at changes from lower to upper case too, a character at a time.

    [^\r\n\p{L}\p{N}]?UPPER*LOWER+ | [^\r\n\p{L}\p{N}]?UPPER+LOWER* | \p{N} |
    ?[^\s\p{L}\p{N}]+[\r\n/]* | \s*[\r\n]+ | \s+(?!\S) | \s+

UPPER is [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and LOWER [\p{Ll}\p{Lm}\p{Lo}\p{M}]: letters without case, and marks, are both. o200k
takes up to three numbers, and a contraction after a word. A letter without case counts as UPPER and as LOWER. So if no lower-case
letter follows the upper-case letters, the word ends after its last letter without case; without one, it is all upper-case
letters.

This runs at 200 MB/s. `cased_blocks` calls it for the positions that its masks do not decide.
"""

import numpy as np

from lt_preprocess.compiler.intrinsics import load8
from lt_preprocess.compiler.jit import inner
from lt_preprocess.tokenizers.bpe.character_classes import HAN, LETTER, LOWER, MARK, NEWLINE, NUMBER, OTHER, UPPER
from lt_preprocess.tokenizers.bpe.characters import class_at, contraction_end, is_white_space, width
from lt_preprocess.tokenizers.pattern_codes import O200K

_BLANK, _APOSTROPHE, _SLASH = ord(" "), ord("'"), ord("/")
# The bits of a character class without its script.
_ANY = np.uint8(HAN - 1)


@inner
def _letters_end(start: int, end: int, classes: int, needs_lower: bool) -> int:
    """Return the end of UPPER*LOWER+ or, unless `needs_lower`, of UPPER+; `start` if neither matches."""
    at, after_caseless = start, start
    while at < end:
        kind = class_at(at, classes)
        if kind != UPPER and kind != LETTER and kind != MARK:
            break
        at += width(load8(at))
        if kind != UPPER:
            after_caseless = at
    if at < end and class_at(at, classes) == LOWER:
        while at < end:
            kind = class_at(at, classes)
            if kind != LOWER and kind != LETTER and kind != MARK:
                break
            at += width(load8(at))
        return at
    return after_caseless if needs_lower or after_caseless > start else at


@inner
def _white_space_end(start: int, end: int, classes: int) -> int:
    at, last, newline_end = start, start, start
    while at < end and is_white_space(at, classes):
        last = at
        at += width(load8(at))
        if class_at(last, classes) == NEWLINE:
            newline_end = at
    if newline_end > start:
        return newline_end
    return at if at == end or last == start else last


@inner
def word_end(pattern: int, start: int, end: int, classes: int) -> int:
    """The end address of the word that starts at `start`; more than `start` and at most `end`."""
    kind = class_at(start, classes)
    second = start + width(load8(start))
    if kind == NUMBER:
        for _ in range(2 if pattern == O200K else 0):
            if second < end and class_at(second, classes) == NUMBER:
                second += width(load8(second))
        return second
    letters = start if kind >= LETTER else second
    stop = _letters_end(letters, end, classes, kind == MARK) if kind != NEWLINE else letters
    if stop > letters or kind == MARK:
        return contraction_end(stop, end, 0x20) if pattern == O200K and stop < end and load8(stop) == _APOSTROPHE else stop
    at = second if load8(start) == _BLANK else start
    run = at
    while run < end:
        kind = class_at(run, classes)
        if kind != OTHER and kind != MARK:
            break
        run += width(load8(run))
    if run > at:
        while run < end and (load8(run) == 0x0A or load8(run) == 0x0D or load8(run) == _SLASH):
            run += 1
        return run
    return _white_space_end(start, end, classes)


@inner
def word_end_by_script(pattern: int, start: int, end: int, classes: int) -> int:
    r"""As `word_end`, for Kimi: runs of Chinese characters are words of their own.

    [\p{Han}]+ | o200k's words, in which UPPER and LOWER have no \p{Han} |
    \p{N}{1,3} | ?[^\s\p{L}\p{N}]+[\r\n]* | \s*[\r\n]+ | \s+(?!\S) | \s+
    """
    kind = class_at(start, classes)
    second = start + width(load8(start))
    # Not every character of the script is a letter: U+3007 is a number, radicals are symbols. They begin a Chinese word, but a
    # run of numbers or of other characters that has begun includes them (`_ANY`).
    if kind >= HAN:
        while second < end and class_at(second, classes) >= HAN:
            second += width(load8(second))
        return second
    if kind == NUMBER:
        for _ in range(2):
            if second < end and class_at(second, classes) & _ANY == NUMBER:
                second += width(load8(second))
        return second
    letters = start if kind >= LETTER else second
    stop = _letters_end(letters, end, classes, kind == MARK) if kind != NEWLINE else letters
    if stop > letters or kind == MARK:
        return contraction_end(stop, end, 0x20) if stop < end and load8(stop) == _APOSTROPHE else stop
    at = second if load8(start) == _BLANK else start
    run = at
    while run < end:
        kind = class_at(run, classes) & _ANY
        if kind != OTHER and kind != MARK:
            break
        run += width(load8(run))
    if run == at:
        return _white_space_end(start, end, classes)
    while run < end and (load8(run) == 0x0A or load8(run) == 0x0D):
        run += 1
    return run
