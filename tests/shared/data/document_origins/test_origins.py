"""Tables of origins: what is written is read again, and merge, shuffle and split say of each document what its source said."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_shared.console import BadData
from lt_shared.data.document_origins import origins, packing
from lt_shared.data.document_origins.origins import Joined, Known, Origins, Shuffled, TakenRanges, TokenizedLines

NUMBERS = st.lists(st.integers(0, 2**40), max_size=40)


@given(st.one_of(NUMBERS, st.lists(st.integers(0, 300), max_size=40)))
def test_columns(numbers: list[int]) -> None:
    array = np.array(numbers, np.int64)
    assert packing.unpack(packing.pack(array)).tolist() == numbers
    ascending = np.sort(array)
    assert packing.unpack_ascending(packing.pack_ascending(ascending)).tolist() == ascending.tolist()


@pytest.mark.parametrize("text", ["", "1:1", "3:1:eNpjAAAAAQAB", "1:2:eNpjAAAAAQAB", "1:1:AAAA", "1:-1:eNpjAAAAAQAB", "1:1:eNp!"])
def test_columns_of_others(text: str) -> None:
    with pytest.raises(ValueError):
        packing.unpack(text)


# Documents of files as (file, line), with gaps.
FILES = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=12), min_size=1, max_size=4)


def table(gaps: list[list[int]], name: str) -> tuple[TokenizedLines, list[tuple[str, int]]]:
    """A table of files whose documents are so many lines apart, made run by run, and where each document is."""
    places = [(file, line) for file, of_file in enumerate(gaps) for line in np.cumsum(of_file).tolist()]
    runs = [
        (number, file, line)
        for number, (file, line) in enumerate(places)
        if number == 0 or places[number - 1] != (file, line - 1)
    ]
    columns = (np.array(column, np.int64) for column in zip(*runs, strict=True))
    nothing = np.zeros(0, np.int64)
    files = [{"path": f"{name}{file}", "size_bytes": 1, "mtime_ns": 2} for file in range(len(gaps))]
    made = TokenizedLines(len(places), files, *columns, nothing, nothing, nothing)
    return made, [(f"{name}{file}", line) for file, line in places]


def found(of: Origins) -> list[tuple[str, int] | None]:
    """Through a file of JSON, as a sidecar has it, in an order that is not that of the documents."""
    read = origins.parse(json.loads(json.dumps(of.to_record())))
    assert read.documents == of.documents
    order = np.random.default_rng(0).permutation(read.documents)
    places = dict(zip(order.tolist(), read.locate(order), strict=True))
    return [(place.path, place.line) if (place := places[number]) else None for number in range(read.documents)]


@given(st.lists(FILES, min_size=1, max_size=3), st.integers(0, 2**63), st.data())
def test_of_what_was_merged_shuffled_and_split(datasets: list[list[list[int]]], seed: int, data: st.DataObject) -> None:
    tables = [table(gaps, f"{number}-") for number, gaps in enumerate(datasets)]
    expected: list[Any] = [place for _, places in tables for place in places]
    assert found(tables[0][0]) == tables[0][1]

    unknown = data.draw(st.integers(0, 3))
    parts: list[Origins | None] = [made for made, _ in tables]
    joined = Joined([*parts, None], [*(made.documents for made, _ in tables), unknown])
    expected += [None] * unknown
    assert found(joined) == expected

    # As lt_preprocess.datasets.shuffle orders them.
    keys = np.random.PCG64(seed).random_raw(len(expected))
    expected = [expected[number] for number in np.argsort(np.asarray(keys), kind="stable").tolist()]
    shuffled = Shuffled(joined, seed)
    assert found(shuffled) == expected

    is_taken = data.draw(st.lists(st.booleans(), min_size=len(expected), max_size=len(expected)))
    ranges, block = TakenRanges(), data.draw(st.integers(1, 5))
    for begin in range(0, len(expected), block):
        of_block = np.array(is_taken[begin : begin + block])
        ranges.add(np.flatnonzero(of_block), len(of_block))
    assert found(ranges.of(shuffled)) == [place for place, taken in zip(expected, is_taken, strict=True) if taken]


def test_the_nearest_known_byte() -> None:
    column = lambda *numbers: np.array(numbers, np.int64)  # noqa: E731
    files = [{"path": "a"}, {"path": "b"}, {"path": "c"}]
    made = TokenizedLines(
        60,
        files,
        *(column(0, 20, 40), column(0, 1, 2), column(1, 1, 1)),
        *(column(0, 0, 1), column(5, 11, 7), column(50, 110, 70)),
        kinds={1: "row"},
        counted_from={2: 1000},
    )
    read = origins.parse(made.to_record())
    places = read.locate(column(0, 3, 4, 9, 10, 19, 20, 26, 40, 59))
    assert [place and place.near for place in places] == [
        *(Known(1, 0), Known(1, 0), Known(5, 50), Known(5, 50), Known(11, 110), Known(11, 110)),
        *(Known(1, 0), Known(7, 70), Known(1, 1000), Known(1, 1000)),
    ]
    assert [(place.kind, place.is_numbered) for place in (places[0], places[6], places[8]) if place] == [
        ("line", True),
        ("row", True),
        ("line", False),
    ]


def test_a_malformed_table_is_named() -> None:
    good = table([[1, 2]], "a")[0].to_record()
    taken = {"v": 1, "kind": "taken", "of": good, "ranges": [packing.pack(np.array([1])), packing.pack(np.array([2]))]}
    assert origins.of_sidecar({"origins": good}, "x.json") is not None
    assert origins.of_sidecar({}, "x.json") is None
    for record in (
        *({}, [], {**good, "v": 2}, {**good, "kind": "other"}, {**good, "documents": -1}, {**good, "files": []}),
        *({**good, "runs": good["runs"][:2]}, {**good, "runs": ["1:1:eNpjAAAAAQAB"] * 3}, {**good, "files": [{"name": "a"}]}),
        *(
            taken,
            {"v": 1, "kind": "joined", "counts": [5], "parts": [good]},
            {"v": 1, "kind": "shuffled", "seed": -1, "of": good},
        ),
    ):
        with pytest.raises(BadData, match=r"x\.json: malformed origins"):
            origins.of_sidecar({"origins": record}, "x.json")


def test_size_of_a_table() -> None:
    """At most a byte a document where a third of the lines is bad; nothing to speak of where few are."""
    rng = np.random.default_rng(0)
    for share, most in ((0.0, 0.02), (0.01, 0.06), (0.33, 1.0)):
        gaps = 1 + (rng.random(30_000) < share)
        size = len(json.dumps(table([gaps.tolist()], "a")[0].to_record()))
        assert size / len(gaps) < most
    for share, most in ((0.98, 0.2), (0.5, 0.6)):
        ranges = TakenRanges()
        numbers = np.flatnonzero(rng.random(100_000) < share)
        ranges.add(numbers, 100_000)
        made = ranges.of(table([[1] * 100_000], "a")[0])
        assert len(json.dumps(made.to_record())) / len(numbers) < most
