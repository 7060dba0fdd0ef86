"""The class of every Unicode code point, as the patterns of byte-level BPE tokenizers see it.

The patterns ask whether a character is a letter (`\\p{L}`) and of which case, a mark (`\\p{M}`), a number (`\\p{N}`), white space
(`\\s`) or a line break. The ranges are those of Unicode 16, taken from the regular expression engine of tiktoken 0.14 by
`generate_unicode_ranges.py`. They are kept as data, so the same text gives the same tokens under every version of Python: its own
`unicodedata` changes, and `str.isspace` also accepts U+001C to U+001F, which `\\s` does not.
"""

import numpy as np
import numpy.typing as npt

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

_RANGES = (
    (unicode_ranges.LETTERS, LETTER),
    (unicode_ranges.UPPER_CASE, UPPER),
    (unicode_ranges.LOWER_CASE, LOWER),
    (unicode_ranges.MARKS, MARK),
    (unicode_ranges.NUMBERS, NUMBER),
    (unicode_ranges.SPACES, SPACE),
)


def _code_points(ranges: str) -> list[tuple[int, int]]:
    """First and last code point of each range in a text like "41-5A AA B5"."""
    bounds = [text.split("-") for text in ranges.split()]
    return [(int(bound[0], 16), int(bound[-1], 16)) for bound in bounds]


def table() -> npt.NDArray[np.uint8]:
    """The class of each code point, shape [0x110000]: 1.1 MB, of which text in one script touches a few cache lines."""
    classes = np.full(0x110000, OTHER, np.uint8)
    for ranges, code in _RANGES:
        for first, last in _code_points(ranges):
            classes[first : last + 1] = code
    classes[[0x0A, 0x0D]] = NEWLINE
    return classes
