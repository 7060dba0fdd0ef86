"""The pattern that code gives its encoding is found without running the code, and nothing else is taken for it."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_preprocess.tokenizers import split_patterns
from lt_preprocess.tokenizers.files import pattern_source
from lt_preprocess.tokenizers.files.pattern_source import Unclear

LLAMA3, QWEN2 = split_patterns.LLAMA3, split_patterns.QWEN2
KNOWN = split_patterns.TIKTOKEN_SPELLINGS
A, B = repr(LLAMA3[:50]), repr(LLAMA3[50:])
CALL = "tiktoken.Encoding('x', pat_str={}, mergeable_ranks=ranks, special_tokens={{}})\n"


def find(*sources: str) -> str | None:
    return pattern_source.find(sources, KNOWN)


@pytest.mark.parametrize(
    "code",
    [
        f"P = {LLAMA3!r}\n",
        f"P: str = {LLAMA3!r}\n" + CALL.format("P"),
        f"P = {A} + {B}\n" + CALL.format("P"),
        f"P = ({A}\n  {B})\n" + CALL.format("P"),
        f"A = {A}\nB = {B}\nP = A + B\n" + CALL.format("P"),
        f"A = {A}\nP = f'{{A}}' {B}\n" + CALL.format("P"),
        f"P = ''.join([{A}, {B}])\n",
        f"PARTS = ({A}, {B})\n" + CALL.format("''.join(PARTS)"),
        f"class T:\n  P = {LLAMA3!r}\n  def f(self):\n    return {CALL.format('self.P')}",
        f"class T:\n  P = {LLAMA3!r}\n  def f(self):\n    return {CALL.format('T.P')}",
        f"class T:\n  def f(self):\n    p = {LLAMA3!r}\n    self.p = re.compile(p)\n    return {CALL.format('p')}",
        f"P = {LLAMA3!r}\nclass T:\n  def f(self, pat_str: str = P):\n    return {CALL.format('pat_str')}",
        f"tiktoken.Encoding('x', {LLAMA3!r}, ranks, {{}})\n",
        f"'''Cuts text by a pattern: {LLAMA3}'''\nOTHER = {QWEN2!r}\n" + CALL.format(repr(LLAMA3)),
    ],
)
def test_the_ways_to_state_it(code: str) -> None:
    compile(code, "code", "exec")
    assert find(code) == LLAMA3
    assert find("x = 1\n", code) == LLAMA3


@pytest.mark.parametrize(
    "code",
    [
        f"P = {LLAMA3!r}\n" + CALL.format(repr("x|") + " + P"),
        f"P = {LLAMA3!r}\n" + CALL.format("f'x|{P}'"),
        f"P = {LLAMA3!r}\n" + CALL.format("'|'.join(['x', P])"),
    ],
)
def test_more_than_a_known_pattern_is_all_of_it(code: str) -> None:
    assert find(code) == "x|" + LLAMA3


@pytest.mark.parametrize(
    "code",
    [
        f"P = {LLAMA3!r}\n" + CALL.format("P + extra"),
        f"P = {LLAMA3!r}\nP += extra\n" + CALL.format("P"),
        f"P = {LLAMA3!r}\nP = read()\n" + CALL.format("P"),
        f"P = {LLAMA3!r}\n" + CALL.format("P if old else Q"),
        f"P = {LLAMA3!r}\n" + CALL.format("P.replace('{1,3}', '')"),
        f"P = {LLAMA3!r}\n" + CALL.format("base._pat_str"),
        f"P = {LLAMA3!r}\n" + CALL.format("P") + CALL.format(repr(QWEN2)),
        "P = P\n" + CALL.format("P"),
        f"P = {LLAMA3!r}\nQ = {QWEN2!r}\n",
        f"P = {LLAMA3!r}\nQ = P + extra\n",
        f"P = 'x|' + {LLAMA3!r}\n",
        f"P = {LLAMA3!r}\nQ = 'x|{{}}'.format(P)\n",
        "x = (\n",
        "\0",
    ],
)
def test_what_cannot_be_told(code: str) -> None:
    with pytest.raises(Unclear):
        find(code)


def test_no_pattern() -> None:
    assert find() is None
    assert find("x = r'\\S+'\n", "") is None
    assert find(f"# {LLAMA3}\n'''{LLAMA3}'''\n") is None


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([*KNOWN]), st.text(max_size=5), st.text(max_size=5), st.booleans())
def test_a_known_pattern_within_a_longer_string(pattern: str, before: str, after: str, is_used: bool) -> None:
    longer = before + pattern + after
    code = f"P = {longer!r}\n" + (CALL.format("P") if is_used else "")
    if is_used or longer in KNOWN:
        assert find(code) == longer
    else:
        with pytest.raises(Unclear):
            find(code)


@settings(max_examples=150, deadline=None)
@given(
    st.text(max_size=60) | st.lists(st.sampled_from([*"()[]='\"+\n", "P", "pat_str", "join", " ", "self.", "f'"])).map("".join)
)
def test_any_code(code: str) -> None:
    """Whatever it is, it is understood or refused."""
    with contextlib.suppress(Unclear):
        assert find(code) is None or "'" in code or '"' in code
