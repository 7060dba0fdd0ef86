"""Patterns in Python's regular expressions cut text as the engine of Hugging Face's library does, and as tiktoken's."""

import sys
import types

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from lt_preprocess.tokenizers import self_check, split_patterns, split_regex
from lt_shared.console import Unavailable

CHARACTERS = (
    "'stremvldSTREMVLDkK\u017f\u212a \t\n\r\x0b\x1c\x85\xa0\u2028\u30001\u0663\xb2!<|>/_-^$]\\\xe9e\u0301"
    "\u4e2d\u3007\u3042\u3005\u01c5\u02b0\U0001f44d"
)
OTHERS = [
    r"[ab]+|\s?\S+|\s+",
    r"(?<=l)l|[\p{P}\p{S}]|\p{L}{2}|[^a\]\-]|(?>ab)x",
    r"(?i:k|s)+|^a|b$| ?\p{M}+",
    r"[\p{L}\p{M}]++|\p{N}*",
]
PATTERNS = [*split_patterns.SPELLINGS, *OTHERS]
HARD_TEXTS = [*self_check._SAMPLE, *self_check._code_points()]


def by_library(pattern: str | tuple[str, ...], text: str) -> list[str]:
    pieces = [text]
    for step in [pattern] if isinstance(pattern, str) else pattern:
        split = pre_tokenizers.Split(Regex(step), "isolated")
        pieces = [part for piece in pieces for part, _ in split.pre_tokenize_str(piece)]
    return pieces


def cut(pattern: str | tuple[str, ...], text: str) -> list[str]:
    return list(split_regex.splitter([pattern] if isinstance(pattern, str) else pattern)(text))


@pytest.fixture(autouse=True)
def without_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tokenizers 1.0 is: its splits are a list of known patterns."""
    monkeypatch.setitem(sys.modules, "tokenizers", types.SimpleNamespace(__version__="1.0.0"))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_hard_texts(pattern: str | tuple[str, ...]) -> None:
    split = split_regex.splitter([pattern] if isinstance(pattern, str) else pattern)
    assert all(list(split(text)) == by_library(pattern, text) for text in HARD_TEXTS)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PATTERNS), st.one_of(st.text(st.sampled_from(CHARACTERS), max_size=30), st.text(max_size=20)))
def test_any_texts(pattern: str | tuple[str, ...], text: str) -> None:
    assert cut(pattern, text) == by_library(pattern, text)


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from(CHARACTERS), max_size=30))
def test_a_spelling_that_only_tiktoken_reads_as_cl100k(text: str) -> None:
    [spelling] = set(split_patterns.TIKTOKEN_SPELLINGS) - set(split_patterns.SPELLINGS)
    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("pieces", pat_str=spelling, mergeable_ranks=ranks, special_tokens={})
    expected = encoding._core_bpe.encode_ordinary(text)
    assert [byte for piece in cut(spelling, text) for byte in piece.encode()] == expected
    assert cut(spelling, text) == cut(split_patterns.CL100K, text)


@pytest.mark.parametrize(
    "pattern", [r"\p{Arabic}+", r"\p{Lu}", r"\d", r"[[:alpha:]]+", r"[a[b]]", r"\p{L", "(a", "(?<n>a)", r"[\w]"]
)
def test_what_python_would_read_otherwise_needs_the_engine(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match=r"tokenizers 1\.0\.0 has no engine for the split pattern") as raised:
        cut(pattern, "a")
    assert raised.value.hint == "pip install 'tokenizers<1'"


def test_the_engine_cuts_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert cut(r"\d", "a12") == ["a", "1", "2"]
