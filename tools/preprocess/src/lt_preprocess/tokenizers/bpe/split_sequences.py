r"""Words of pre-tokenizers that split text several times, each time only what the split before has left, a character at a time.

StarCoder:  \p{N}, then GPT-2's pattern.
DeepSeek:   \p{N}{1,3}, then [\u4e00-\u9fa5\u3040-\u30ff]+, then
            ASCII punctuation and [A-Za-z]+ | [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+ | ?[\p{P}\p{S}]+[\r\n]* |
            \s*[\r\n]+ | \s+(?!\S) | \s+

To a later split, what the earlier ones cut out is the end of the text: all white space before a number is one word. DeepSeek's
last pattern leaves out control characters and what Unicode does not assign, unless a letter follows; a run of these is a word."""

from lt_preprocess.kernels.intrinsics import load8
from lt_preprocess.kernels.jit import inner
from lt_preprocess.tokenizers.bpe.character_classes import (
    IDEOGRAPH,
    LETTER,
    NEWLINE,
    NUMBER,
    OTHER,
    PUNCTUATION,
    SPACE,
)
from lt_preprocess.tokenizers.bpe.characters import class_at, contraction_end, is_white_space, width

_BLANK, _APOSTROPHE = ord(" "), ord("'")


@inner
def _run_end(start: int, end: int, classes: int, kind: int) -> int:
    """The end of the characters of one class from `start` on."""
    while start < end and class_at(start, classes) == kind:
        start += width(load8(start))
    return start


@inner
def _is(at: int, end: int, classes: int, kind: int) -> bool:
    return at < end and class_at(at, classes) == kind


@inner
def _ascii_letters_end(start: int, end: int) -> int:
    while start < end and ord("a") <= load8(start) | 0x20 <= ord("z"):
        start += 1
    return start


@inner
def _white_space_end(start: int, end: int, classes: int, is_deepseek: bool) -> int:
    """GPT-2 knows no line breaks. A run that a number or an ideograph follows is cut as at the end of the text."""
    at, last, newline_end = start, start, start
    while at < end and is_white_space(at, classes):
        last = at
        at += width(load8(at))
        if class_at(last, classes) == NEWLINE:
            newline_end = at
    if is_deepseek and newline_end > start:
        return newline_end
    if at == end or last == start or class_at(at, classes) == NUMBER:
        return at
    return at if is_deepseek and class_at(at, classes) == IDEOGRAPH else last


@inner
def _unmatched_end(start: int, end: int, classes: int) -> int:
    """From a character of no class: a word when letters follow, else the run of such characters before the next match."""
    second = start + width(load8(start))
    if _is(second, end, classes, LETTER):
        return _run_end(second, end, classes, LETTER)
    while _is(second, end, classes, OTHER):
        following = second + width(load8(second))
        if _is(following, end, classes, LETTER):
            break
        second = following
    return second


@inner
def deepseek_word_end(start: int, end: int, classes: int) -> int:
    """The address at which the word that starts at `start` ends; more than `start` and at most `end`."""
    kind = class_at(start, classes)
    second = start + width(load8(start))
    if kind == NUMBER:
        for _ in range(2):
            if _is(second, end, classes, NUMBER):
                second += width(load8(second))
        return second
    if kind == IDEOGRAPH:
        return _run_end(second, end, classes, IDEOGRAPH)
    if kind == LETTER:
        return _run_end(second, end, classes, LETTER)
    if kind == OTHER:
        return _unmatched_end(start, end, classes)
    if kind == SPACE and _is(second, end, classes, LETTER):
        return _run_end(second, end, classes, LETTER)
    if kind == PUNCTUATION and load8(start) < 0x80:
        stop = _ascii_letters_end(second, end)
        if stop > second:
            return stop
    if kind == PUNCTUATION or (load8(start) == _BLANK and _is(second, end, classes, PUNCTUATION)):
        return _run_end(_run_end(second, end, classes, PUNCTUATION), end, classes, NEWLINE)
    return _white_space_end(start, end, classes, True)


@inner
def starcoder_word_end(start: int, end: int, classes: int) -> int:
    """The same for StarCoder."""
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
    if kind in (SPACE, NEWLINE, NUMBER):
        return _white_space_end(start, end, classes, False)
    if kind >= LETTER:
        while at < end and class_at(at, classes) >= LETTER:
            at += width(load8(at))
        return at
    while at < end and class_at(at, classes) < NUMBER:
        at += width(load8(at))
    return at
