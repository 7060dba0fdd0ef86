r"""Words as Kimi's pattern cuts them: o200k's, but runs of Chinese characters are separate words. The words are cut a character
at a time; `cased_blocks` calls this module if its masks do not decide.

    [\p{Han}]+ | o200k's words, in which UPPER and LOWER have no \p{Han} |
    \p{N}{1,3} | ?[^\s\p{L}\p{N}]+[\r\n]* | \s*[\r\n]+ | \s+(?!\S) | \s+

Not every character of the script is a letter: U+3007 is a number, radicals are symbols. They begin a Chinese word, but a run of
numbers or other characters that has begun includes them, too."""

import numpy as np

from lt_preprocess.compiler.intrinsics import load8
from lt_preprocess.compiler.jit import inner
from lt_preprocess.tokenizers.bpe.cased_words import letters_end, white_space_end
from lt_preprocess.tokenizers.bpe.character_classes import HAN, LETTER, MARK, NEWLINE, NUMBER, OTHER
from lt_preprocess.tokenizers.bpe.characters import class_at, contraction_end, width

_BLANK = ord(" ")
_ANY = np.uint8(HAN - 1)


@inner
def word_end(pattern: int, start: int, end: int, classes: int) -> int:
    """The address at which the word that starts at `start` ends; more than `start` and at most `end`."""
    kind = class_at(start, classes)
    second = start + width(load8(start))
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
    stop = letters_end(letters, end, classes, kind == MARK) if kind != NEWLINE else letters
    if stop > letters or kind == MARK:
        return contraction_end(stop, end, 0x20) if stop < end and load8(stop) == ord("'") else stop
    at = second if load8(start) == _BLANK else start
    run = at
    while run < end:
        kind = class_at(run, classes) & _ANY
        if kind != OTHER and kind != MARK:
            break
        run += width(load8(run))
    if run == at:
        return white_space_end(start, end, classes)
    while run < end and (load8(run) == 0x0A or load8(run) == 0x0D):
        run += 1
    return run
