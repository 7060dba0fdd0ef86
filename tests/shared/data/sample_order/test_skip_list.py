"""Which samples a list leaves out, in every spelling, against sets of numbers."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_shared.console import BadData, NoInput
from lt_shared.data.sample_order.skip_list import SkipList

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda pair: (pair[0], pair[0] + pair[1])))


@given(RANGES, st.integers(0, 70), st.integers(0, 20))
def test_the_numbers_of_ranges_in_any_order(ranges: list[tuple[int, int]], first: int, count: int) -> None:
    numbers = {number for start, end in ranges for number in range(start, end + 1)}
    found = SkipList.of(ranges)
    asked = range(first, first + count)
    assert found.within(asked) == [number for number in asked if number in numbers]
    assert [number for number in range(80) if number in found] == sorted(numbers)
    assert found.count(first) == sum(number < first for number in numbers)
    assert all(earlier[1] + 1 < later[0] for earlier, later in zip(found.ranges, found.ranges[1:], strict=False))
    assert bool(found) == bool(ranges)


@given(RANGES.filter(bool))
def test_a_list_survives_its_file_and_its_text(tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int]]) -> None:
    wanted = SkipList.of(ranges)
    path = tmp_path_factory.mktemp("skip") / "list"
    path.write_text("\n".join(wanted.lines()))
    assert SkipList.read(str(path)) == wanted
    path.write_text(str(wanted).replace(",", "\n"))
    assert SkipList.read(str(path)) == wanted
    assert SkipList.parse(str(wanted)) == wanted


def test_a_file_of_all_spellings(tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_text(
        "# poisoned\n7\n\n 9 - 11 # a table\n"
        '{"v":1,"kind":"skip","samples":[20,21],"why":"#1"}\r\n{"v":1,"kind":"end","count":1}\n'
    )
    assert SkipList.read(str(path)).ranges == ((7, 7), (9, 11), (20, 21))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no sample to skip"),
        ("# 7\n", "no sample to skip"),
        ("7\nseven\n", r"line 2: 'seven' is no number"),
        ("-7", "no number"),
        ("9-7", "9 to 7 is no range"),
        ("7.0", "no number"),
        ('{"v":2,"kind":"skip","samples":[1,2]}', "version 2"),
        ('{"v":1,"kind":"dataset","prefix":"a"}', "kind 'dataset'"),
        ('{"v":1,"kind":"skip","samples":[1]}', "the first and the last"),
        ('{"v":1,"kind":"skip","samples":[true,2]}', "the first and the last"),
        ('{"v":1,"kind":"skip","samples":[3,2]}', "no range"),
        ('{"v":1,"kind":"skip","kind":"skip","samples":[1,2]}', "twice"),
        ("{", "line 1"),
        ("\ufeff7", "no number"),
    ],
)
def test_what_is_no_list(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_text(text)
    with pytest.raises(BadData, match=problem):
        SkipList.read(str(path))


def test_a_file_that_is_not_text_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "list"
    with pytest.raises(NoInput):
        SkipList.read(str(path))
    path.write_bytes(b"7\n\xff\n")
    with pytest.raises(BadData, match="not text"):
        SkipList.read(str(path))
