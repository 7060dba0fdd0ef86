"""The longest token at every offset, as a search through all tokens finds it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lt_preprocess.tokenizers import token_trie

tokens = st.lists(st.text("ab_", min_size=1, max_size=5).map(str.encode), unique=True, max_size=8)


def matches(trie: token_trie.TokenTrie, text: bytes) -> list[tuple[int, int]]:
    data = np.frombuffer(text, np.uint8)
    return [token_trie.longest_match(trie, data, start, len(text)) for start in range(len(text))]


@given(tokens, st.text("ab_x", max_size=20).map(str.encode))
def test_longest_match(tokens: list[bytes], text: bytes) -> None:
    trie = token_trie.build(tokens)
    for start, (number, stop) in enumerate(matches(trie, text)):
        found = max((token for token in tokens if text.startswith(token, start)), key=len, default=b"")
        assert (number, stop) == (tokens.index(found) if found else -1, start + len(found))
        assert bool(trie.is_first[text[start]]) == any(token[0] == text[start] for token in tokens)


@given(tokens, st.lists(st.sampled_from([b"a", b"b", b"_", b"__"])))
def test_another_spelling_of_some_bytes(tokens: list[bytes], parts: list[bytes]) -> None:
    """A text with the alias matches the tokens that it matches when it is spelled as they are."""
    trie = token_trie.build(tokens, {ord(" "): b"__"})
    spelled_offsets = np.cumsum([0, *map(len, parts)]).tolist()
    aliased = [part.replace(b"__", b" ") for part in parts]
    aliased_offsets = np.cumsum([0, *map(len, aliased)]).tolist()
    spelled, in_aliased = matches(trie, b"".join(parts)), matches(trie, b"".join(aliased))
    ends = dict(zip(spelled_offsets, aliased_offsets, strict=True))
    for start, end in zip(spelled_offsets[:-1], aliased_offsets[:-1], strict=True):
        number, stop = spelled[start]
        if stop in ends:
            assert in_aliased[end] == (number, ends[stop])


def test_no_tokens() -> None:
    trie = token_trie.build([])
    assert not trie.is_first.any()
    assert matches(trie, b"ab") == [(-1, 0), (-1, 1)]
