"""Nothing that a terminal would obey gets through."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.events.escaping import printable


@given(st.text() | st.text("\x00\x07\x08\t\n\r\x1b\x7f\x85\x9b\u200f\u2028\u202e\u2066\ud800\ufeffa[31m"))
def test_text_is_one_line_without_control_characters(text: str) -> None:
    safe = printable(text)
    assert len(safe.splitlines()) <= 1
    assert not {unicodedata.category(character) for character in safe} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize("text", ["\x1b]0;title\x07", "\x1b[2J", "a\r\nb", "\u202eevil", "\ud800", "\x9b31m", "\x00"])
def test_escapes_are_shown(text: str) -> None:
    assert "\\" in printable(text)
    assert printable(text).isprintable()


def test_other_text_stays_as_it_is() -> None:
    assert printable("실행/llama-3 ▁▂ é <b>") == "실행/llama-3 ▁▂ é <b>"
    assert printable("\x1b[31mred") == "\\x1b[31mred"


def test_long_text_ends_in_an_ellipsis() -> None:
    assert printable("abcdef", 4) == "abc…"
    assert printable("abcd", 4) == "abcd"
    assert len(printable("x" * 1000)) == 500
