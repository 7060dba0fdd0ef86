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
NAME_OF = {pattern: code for pattern, code in split_patterns.SPELLINGS.items() if isinstance(pattern, str)}
SPELLINGS = [list(patterns) for _, patterns in itertools.groupby(sorted(NAME_OF, key=NAME_OF.__getitem__), NAME_OF.__getitem__)]


@pytest.mark.parametrize("spellings", [spellings for spellings in SPELLINGS if len(spellings) > 1])
def test_spellings_of_one_pattern(spellings: list[str]) -> None:
    splitters = [pre_tokenizers.Split(Regex(spelling), "isolated") for spelling in spellings]

    @settings(max_examples=250, deadline=None)
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


def test_a_spelling_that_only_tiktoken_reads_as_cl100k() -> None:
    """To Hugging Face's engine `{1,3}+` is a repetition, so a tokenizer.json with it is another pattern."""
    [spelling] = set(split_patterns.TIKTOKEN_SPELLINGS) - set(split_patterns.SPELLINGS)
    assert split_patterns.code(spelling) == split_patterns.NOT_COMPILED
    pieces = pre_tokenizers.Split(Regex(spelling), "isolated").pre_tokenize_str("1234567")
    assert [piece for piece, _ in pieces] == ["1234567"]
