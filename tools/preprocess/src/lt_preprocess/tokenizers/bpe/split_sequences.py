r"""Words of a pre-tokenizer that splits text twice, a character at a time; the second split cuts the gaps between the first's
matches.

StarCoder:  \p{N}, then GPT-2's pattern.

For the second split, a match of the first is the end of the text: all white space before a number is one word."""

from lt_preprocess.compiler.intrinsics import load8
from lt_preprocess.compiler.jit import inner
from lt_preprocess.tokenizers.bpe.character_classes import LETTER, NEWLINE, NUMBER
from lt_preprocess.tokenizers.bpe.characters import class_at, contraction_end, is_white_space, width

_BLANK, _APOSTROPHE = ord(" "), ord("'")


@inner
def _white_space_end(start: int, end: int, classes: int) -> int:
    """GPT-2 knows no line breaks. A run that a number follows is cut as at the end of the text."""
    at, last = start, start
    while at < end and is_white_space(at, classes):
        last = at
        at += width(load8(at))
    return at if at == end or last == start or class_at(at, classes) == NUMBER else last


@inner
def starcoder_word_end(start: int, end: int, classes: int) -> int:
    """The address at which the word that starts at `start` ends; more than `start` and at most `end`."""
    kind = class_at(start, classes)
    second = start + width(load8(start))
    if kind == NUMBER:
        return second
    if load8(start) == _APOSTROPHE:
        stop = contraction_end(start, end, 0)
        if stop > start:
            return stop
    at = start
    if load8(start) == _BLANK and second < end:
        kind = class_at(second, classes)
        at = second
    if NUMBER <= kind <= NEWLINE:
        return _white_space_end(start, end, classes)
    if kind >= LETTER:
        while at < end and class_at(at, classes) >= LETTER:
            at += width(load8(at))
        return at
    while at < end and class_at(at, classes) < NUMBER:
        at += width(load8(at))
    return at
