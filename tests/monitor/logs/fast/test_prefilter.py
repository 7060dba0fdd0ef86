"""The gate finds every keyword and nothing else, whatever surrounds it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.logs.fast.prefilter import Prefilter
from lt_monitor.logs.formats.table import keywords

KEYWORDS = [b"lm loss:", b"loss value", b"aaaaaaa", b"aaaaaaab", b"\x00\xff\x00\xff\x00\xff\x00", b"elapsed time per iteration"]
TABLE = Prefilter(keywords())
PREFILTER = Prefilter({keyword: place for place, keyword in enumerate(KEYWORDS)})


def found(gate: Prefilter[int], block: bytes) -> set[int]:
    return {meaning for _, meaning in gate.confirmed(block, gate.candidates(block).tolist())}


@given(st.lists(st.one_of(st.sampled_from(KEYWORDS), st.binary(max_size=9), st.just(b"\n")), max_size=12))
def test_the_keywords_in_a_block_are_those_that_a_search_finds(pieces: list[bytes]) -> None:
    block = b"".join(pieces)
    assert found(PREFILTER, block) == {place for place, keyword in enumerate(KEYWORDS) if keyword in block}


def test_a_hit_lies_within_its_keyword() -> None:
    block = b"x" * 1001 + KEYWORDS[-1] + b"\n" + b"y" * 50
    ((position, _),) = PREFILTER.confirmed(block, PREFILTER.candidates(block).tolist())
    assert 1001 <= position < 1001 + len(KEYWORDS[-1])


@pytest.mark.parametrize("begin", range(4))
def test_every_keyword_of_the_table_is_found_at_every_place(begin: int) -> None:
    def is_seen(keyword: bytes, meaning: object) -> bool:
        block = b"." * begin + keyword
        return meaning in [seen for _, seen in TABLE.confirmed(block, TABLE.candidates(block).tolist())]

    assert [keyword for keyword, meaning in keywords().items() if not is_seen(keyword, meaning)] == []


def test_a_keyword_must_not_be_short() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Prefilter({b"Error:": 1})
