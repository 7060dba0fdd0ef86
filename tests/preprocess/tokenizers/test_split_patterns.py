"""Patterns that are taken for the same cut every text alike, in the engine of Hugging Face's library."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from lt_preprocess.tokenizers import pattern_codes, split_patterns

CHARACTERS = (
    "'stremvldSTREMVLDk\u017f\u212a \t\n\r\x0b\x1c\x85\xa0\u2028\u30001\u0663\xb2!<|>/_\xe9e\u0301\u4e2d\u01c5\u02b0A\U0001f44d\0"
)
NAME_OF = split_patterns.SPELLINGS
SPELLINGS = [list(patterns) for _, patterns in itertools.groupby(sorted(NAME_OF, key=NAME_OF.__getitem__), NAME_OF.__getitem__)]


@pytest.mark.parametrize("spellings", [spellings for spellings in SPELLINGS if len(spellings) > 1])
def test_spellings_of_one_pattern(spellings: list[str]) -> None:
    splitters = [pre_tokenizers.Split(Regex(spelling), "isolated") for spelling in spellings]

    @settings(max_examples=1500, deadline=None)
    @given(st.one_of(st.text(st.sampled_from(CHARACTERS), max_size=30), st.text(max_size=20)))
    def check(text: str) -> None:
        first, *others = (splitter.pre_tokenize_str(text) for splitter in splitters)
        assert all(other == first for other in others)

    check()


def test_codes() -> None:
    assert split_patterns.code(split_patterns.GPT2) == pattern_codes.GPT2
    assert split_patterns.code(split_patterns.LLAMA3) == pattern_codes.LLAMA3
    assert split_patterns.code(split_patterns.QWEN2) == pattern_codes.QWEN2
    assert split_patterns.code(split_patterns.LLAMA3 + "|x") == split_patterns.NOT_COMPILED


def test_the_pattern_in_source_code() -> None:
    assert split_patterns.find_in(f'PATTERN = r"""{split_patterns.QWEN2}"""') == split_patterns.QWEN2
    assert split_patterns.find_in("PATTERN = r'\\S+'") is None
    assert split_patterns.find_in(split_patterns.QWEN2 + split_patterns.LLAMA3) is None
