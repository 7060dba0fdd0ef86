"""The prefilter finds every keyword and nothing else, whatever surrounds it, and lets little noise through.

Each test builds its prefilter itself, so that a mutant of the constructor is tried on all of them.
"""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.logs.fast.prefilter import FEW_CANDIDATES, GROUP_BYTES, GROUPS, Prefilter
from lt_monitor.logs.formats.table import keywords

KEYWORDS = [b"lm loss:", b"loss value", b"aaaaaaa", b"aaaaaaab", b"\x00\xff\x00\xff\x00\xff\x00", b"elapsed time per iteration"]
NOISE = b"2026-01-16 07:32:24 worker 3 handled request GET /health HTTP/1.1 200 OK, queue and handler enabled\n"


def prefilter() -> Prefilter[int]:
    return Prefilter({keyword: number for number, keyword in enumerate(KEYWORDS)})


def meanings(finder: Prefilter[int], block: bytes) -> set[int]:
    return {meaning for _, meaning in finder.confirmed(block, finder.candidates(block).tolist())}


def searched(block: bytes) -> set[int]:
    return {number for number, keyword in enumerate(KEYWORDS) if keyword in block}


@given(st.lists(st.one_of(st.sampled_from(KEYWORDS), st.binary(max_size=9), st.just(b"\n")), max_size=12))
def test_the_keywords_in_a_block_are_those_that_a_search_finds(pieces: list[bytes]) -> None:
    block = b"".join(pieces)
    assert meanings(prefilter(), block) == searched(block)


@pytest.mark.parametrize("shift", range(GROUP_BYTES))
def test_keywords_are_found_among_many_candidates(shift: int) -> None:
    """Above FEW_CANDIDATES the seven bytes around each candidate are compared first: here each keyword is in one line of 300."""
    finder, chance = prefilter(), random.Random(shift)
    decoys = [b"lm lossy ", b"loss valid ", b"aaaaaa ", b"\x00\xff\x00\xff\x00\x00", b"elapsed timer "]
    for number, keyword in enumerate(KEYWORDS):
        pieces = [chance.choice(decoys) + b"." * chance.randrange(GROUP_BYTES) for _ in range(300)]
        block = b"." * shift + b"".join(pieces)
        assert meanings(finder, block) == set()
        pieces.insert(150, b"#" + keyword + b"#")
        assert meanings(finder, b"." * shift + b"".join(pieces)) == searched(keyword) >= {number}


@pytest.mark.parametrize("shift", range(GROUP_BYTES))
def test_a_window_lies_at_any_offset_of_its_groups(shift: int) -> None:
    """Each of the 70 keywords of seven bytes is a candidate once, wherever it lies among groups."""
    finder = Prefilter({b"qzxjkvw": 1})
    block = b"." * shift + b"qzxjkvw.....".join([b""] * 71)
    candidates = finder.candidates(block)
    assert candidates.dtype == np.int64
    first = {0: 0, 1: 4, 2: 4, 3: 4}[shift]
    assert candidates.tolist() == list(range(first, first + 70 * 12, 12))


def test_candidates_without_a_window_around_them_are_left_out() -> None:
    """Groups at either end of the block lack a neighbour and stay."""
    finder = Prefilter({b"qzxjkvw": 1})
    assert len(finder.candidates(b"qzxj" * FEW_CANDIDATES)) == FEW_CANDIDATES
    assert finder.candidates(b"qzxj" * 100).tolist() == [0, 396]
    assert finder.candidates(b"...." + b"qzxj" * 100 + b"....").tolist() == []


@pytest.mark.parametrize("count", [1, FEW_CANDIDATES + 1])
def test_keywords_are_found_in_blocks_larger_than_the_cache(count: int) -> None:
    """At both sides of where one piece of the block ends, and in the last one."""
    keyword = KEYWORDS[-1]
    for place in (GROUPS * GROUP_BYTES - 13, GROUPS * GROUP_BYTES, 2 * GROUPS * GROUP_BYTES + 9):
        block = b"." * place + (keyword + b"..") * count
        finder = prefilter()
        matches = list(finder.confirmed(block, finder.candidates(block).tolist()))
        assert {meaning for _, meaning in matches} == {len(KEYWORDS) - 1}
        assert {(offset - place) // (len(keyword) + 2) for offset, _ in matches} == set(range(count))


def test_a_hit_lies_within_its_keyword() -> None:
    finder = prefilter()
    block = b"x" * 1001 + KEYWORDS[-1] + b"\n" + b"y" * 50
    ((position, _),) = finder.confirmed(block, finder.candidates(block).tolist())
    assert 1001 <= position < 1001 + len(KEYWORDS[-1])


@pytest.mark.parametrize("begin", range(4))
def test_every_keyword_of_the_table_is_found_at_every_place(begin: int) -> None:
    finder = Prefilter(keywords())

    def is_seen(keyword: bytes, meaning: object) -> bool:
        block = b"." * begin + keyword
        return meaning in [seen for _, seen in finder.confirmed(block, finder.candidates(block).tolist())]

    assert [keyword for keyword, meaning in keywords().items() if not is_seen(keyword, meaning)] == []


def test_the_window_of_a_keyword_is_its_rarest() -> None:
    """A line with the common part of a keyword is no candidate: not with words of the noise, nor with frequent letters."""
    for keyword in (b"worker 3 handled qzxjkvw", b"qzxjkvw worker 3 handled", b"worker 3 qzxjkvw handled", b"tesatona QZXJKVW"):
        finder = Prefilter({keyword: 1})
        common = keyword.replace(b"qzxjkvw", b"").replace(b"QZXJKVW", b"")
        for shift in range(GROUP_BYTES):
            assert len(finder.candidates(b"." * shift + common)) == 0
            assert len(finder.candidates(b"." * shift + keyword)) == 1


@pytest.mark.parametrize(
    ("keyword", "start"),
    [
        # Rare bytes: the commonest group of the window weighs least. `/` is the least frequent of the frequent bytes.
        *((b"u1urJ 1n", 1), (b"2lh38.r3", 1), (b"eJ-n1omo", 0), (b"lr036atQ", 0), (b"QQumQQQeQKJXQta", 3)),
        # Groups that the noise has count a thousand bytes, and windows that it has come last.
        *((b"30000 th", 0), (b"steps, p", 1), (b"disk, - ", 1), (b"line in ", 0)),
    ],
)
def test_the_groups_of_the_rarest_window_are_candidates(keyword: bytes, start: int) -> None:
    finder = Prefilter({keyword: 1})
    begins = range(len(keyword) - GROUP_BYTES + 1)
    assert [begin for begin in begins if len(finder.candidates(keyword[begin : begin + GROUP_BYTES]))] == [
        *range(start, start + 4)
    ]


def test_little_noise_passes() -> None:
    """Of 10,000 lines without a keyword, with every keyword of the table."""
    block = NOISE * 10_000
    assert len(Prefilter(keywords()).candidates(block)) < 3


def test_a_block_shorter_than_a_group() -> None:
    for block in (b"", b"abc"):
        assert prefilter().candidates(block).tolist() == []


def test_a_keyword_must_not_be_short() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Prefilter({b"Error:": 1})
