"""A lazy pattern does what `re.Pattern` does, and is compiled only when it is used."""

import re

import pytest

from lt_shared.lazy_patterns import regex


def test_the_methods_are_those_of_the_compiled_pattern() -> None:
    lazy, compiled = regex(r"(?P<word>a+)b?", re.IGNORECASE), re.compile(r"(?P<word>a+)b?", re.IGNORECASE)
    text = "xAab aa"
    assert lazy.pattern == compiled.pattern
    assert lazy.groupindex == compiled.groupindex
    assert lazy.findall(text) == compiled.findall(text)
    assert lazy.sub("-", text) == compiled.sub("-", text)
    assert lazy.split(text) == compiled.split(text)
    assert lazy.match(text) is None
    assert lazy.fullmatch("aab") is not None
    assert [match["word"] for match in lazy.finditer(text)] == ["Aa", "aa"]


def test_nothing_is_compiled_before_the_first_use() -> None:
    broken = regex(b"(")
    with pytest.raises(re.error):
        broken.search(b"")
