"""Unicode character classes as the patterns of byte-level BPE tokenizers distinguish them.

The patterns ask whether a character is a letter (`\\p{L}`), its case, a mark (`\\p{M}`), a number (`\\p{N}`), white space
(`\\s`) or a line break. The ranges are Unicode 16's, taken from the regular expression engine of tiktoken 0.14 by
`generate_unicode_ranges.py`. They are kept as data, so a text gives the same tokens under every version of Python:
`unicodedata` changes between versions, and `str.isspace` accepts U+001C to U+001F, which `\\s` does not.
"""

import numpy as np
import numpy.typing as npt

from lt_preprocess.tokenizers import pattern_codes
from lt_preprocess.tokenizers.bpe import unicode_ranges

OTHER = 0
MARK = 1
NUMBER = 2
SPACE = 3
NEWLINE = 4
LETTER = 5
"""A letter without case, and all letters from here on."""
UPPER = 6
"""Upper and title case."""
LOWER = 7
HAN = 8
"""Added to the class of a Chinese character for Kimi's pattern: letters, but also numbers, marks and others of that script."""

PUNCTUATION = 6
"""For DeepSeek's pattern, which asks for no case: punctuation and symbols. OTHER is then what is none of all these classes."""
IDEOGRAPH = 7
"""For DeepSeek's pattern: the letters and marks that its second split cuts out, in runs; ..."""
SIGN = 8
"""... the punctuation and symbols among them, such as the dot between Japanese words, which the third split cuts apart; ..."""
STRAY = 9
"""... and the unassigned code points among them, which the third split cuts apart or joins with the letters after them."""
_DEEPSEEK_IDEOGRAPHS = ((0x3040, 0x30FF), (0x4E00, 0x9FA5))

_RANGES = (
    (unicode_ranges.LETTERS, LETTER),
    (unicode_ranges.UPPER_CASE, UPPER),
    (unicode_ranges.LOWER_CASE, LOWER),
    (unicode_ranges.MARKS, MARK),
    (unicode_ranges.NUMBERS, NUMBER),
    (unicode_ranges.SPACES, SPACE),
)


def _code_points(ranges: str) -> list[tuple[int, int]]:
    """Return the first and last code points of the ranges in a text like "41-5A AA B5"."""
    bounds = [text.split("-") for text in ranges.split()]
    return [(int(bound[0], 16), int(bound[-1], 16)) for bound in bounds]


def table(pattern: int = pattern_codes.GPT2) -> npt.NDArray[np.uint8]:
    """Return the code points' classes for a pattern, shape [0x110000]: 1.1 MB; a script touches only a few cache lines.

    Patterns that treat marks as letters differ from the other patterns only in this: their tables have no marks.
    """
    classes = np.full(0x110000, OTHER, np.uint8)
    for ranges, code in _RANGES:
        for first, last in _code_points(ranges):
            classes[first : last + 1] = code
    if pattern == pattern_codes.QWEN35:
        classes[classes == MARK] = LETTER
    if pattern == pattern_codes.KIMI:
        for first, last in _code_points(unicode_ranges.HAN):
            classes[first : last + 1] += HAN
    if pattern == pattern_codes.DEEPSEEK:
        classes[(classes == MARK) | (classes >= LETTER)] = LETTER
        for first, last in _code_points(unicode_ranges.PUNCTUATION_AND_SYMBOLS):
            classes[first : last + 1] = PUNCTUATION
        for first, last in _DEEPSEEK_IDEOGRAPHS:
            cut_out = classes[first : last + 1]
            cut_out[:] = np.select([cut_out == LETTER, cut_out == PUNCTUATION], [IDEOGRAPH, SIGN], STRAY)
    classes[[0x0A, 0x0D]] = NEWLINE
    return classes
