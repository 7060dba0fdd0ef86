"""Every code point has the class that tiktoken's regular expressions give it."""

import re

import numpy as np
import pytest
import tiktoken

from lt_preprocess.tokenizers import pattern_codes
from lt_preprocess.tokenizers.bpe import character_classes
from lt_preprocess.tokenizers.bpe.character_classes import (
    HAN,
    IDEOGRAPH,
    LETTER,
    LOWER,
    MARK,
    NEWLINE,
    NUMBER,
    PUNCTUATION,
    SIGN,
    SPACE,
    STRAY,
    UPPER,
)

POINTS = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]


def members(pattern: str) -> set[int]:
    """The code points that tiktoken matches: with a vocabulary of bytes, encoding drops everything else."""
    encoding = tiktoken.Encoding("class", pat_str=pattern, mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={})
    found: set[int] = set()
    for start in range(0, len(POINTS), 8192):
        text = "".join(map(chr, POINTS[start : start + 8192]))
        found.update(map(ord, bytes(encoding.encode_ordinary(text)).decode()))
    return found


@pytest.mark.parametrize(
    ("pattern", "classes"),
    [
        (r"\p{L}", [LETTER, UPPER, LOWER]),
        (r"[\p{Lm}\p{Lo}]", [LETTER]),
        (r"[\p{Lu}\p{Lt}]", [UPPER]),
        (r"\p{Ll}", [LOWER]),
        (r"\p{M}", [MARK]),
        (r"\p{N}", [NUMBER]),
        (r"\s", [SPACE, NEWLINE]),
        (r"[\r\n]", [NEWLINE]),
    ],
)
def test_every_code_point_is_classed_as_by_tiktoken(pattern: str, classes: list[int]) -> None:
    table = character_classes.table()
    assert table.shape == (0x110000,)
    assert set(np.flatnonzero(np.isin(table, classes)).tolist()) == members(pattern)


@pytest.mark.parametrize(
    ("code", "pattern", "classes"),
    [
        (pattern_codes.QWEN35, r"[\p{L}\p{M}]", [LETTER, UPPER, LOWER]),
        (pattern_codes.KIMI, r"\p{Han}", range(HAN, 2 * HAN)),
        (pattern_codes.KIMI, r"\p{N}", [NUMBER, HAN + NUMBER]),
        (pattern_codes.DEEPSEEK, r"[[\p{P}\p{S}]--[\u3040-\u30ff]]", [PUNCTUATION]),
        (pattern_codes.DEEPSEEK, r"[\u4e00-\u9fa5\u3040-\u30ff]", [IDEOGRAPH, SIGN, STRAY]),
        (pattern_codes.DEEPSEEK, r"[[\p{P}\p{S}]&&[\u3040-\u30ff]]", [SIGN]),
        (pattern_codes.DEEPSEEK, r"[\u3040-\u30ff--[\p{P}\p{S}\p{L}\p{M}]]", [STRAY]),
        (pattern_codes.DEEPSEEK, r"[[\p{L}\p{M}]--[\u4e00-\u9fa5\u3040-\u30ff]]", [LETTER]),
    ],
)
def test_classes_of_a_pattern(code: int, pattern: str, classes: list[int]) -> None:
    assert set(np.flatnonzero(np.isin(character_classes.table(code), [*classes])).tolist()) == members(pattern)


def test_white_space_is_not_that_of_str_isspace() -> None:
    table = character_classes.table()
    assert all(chr(point).isspace() and table[point] not in (SPACE, NEWLINE) for point in range(0x1C, 0x20))
    assert all(re.match(r"\s", chr(point)) for point in np.flatnonzero(table == SPACE))
