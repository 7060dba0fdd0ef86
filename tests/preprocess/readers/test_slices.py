"""The parts of the input, one after the other, are the whole input, and about equal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_preprocess.readers.slices import Piece, Slice, pieces


@given(st.lists(st.tuples(st.integers(0, 1000), st.booleans()), max_size=30), st.integers(1, 40))
def test_parts_are_contiguous_and_complete(files: list[tuple[int, bool]], count: int) -> None:
    sizes = [size for size, _ in files]
    found = [piece for index in range(count) for piece in pieces(sizes, lambda number: files[number][1], Slice(index, count))]
    for number, (size, can_be_cut) in enumerate(files):
        of_file = [piece for piece in found if piece.input == number]
        assert of_file[0].begin == 0
        assert of_file[-1].stop == size
        assert [piece.stop for piece in of_file[:-1]] == [piece.begin for piece in of_file[1:]]
        assert can_be_cut or len(of_file) == 1
    assert [piece.input for piece in found] == sorted(piece.input for piece in found)


def test_one_large_file_is_cut_into_equal_parts() -> None:
    assert [list(pieces([1001], lambda number: True, Slice(index, 4))) for index in range(4)] == [
        [Piece(0, 0, 251)],
        [Piece(0, 251, 501)],
        [Piece(0, 501, 751)],
        [Piece(0, 751, 1001)],
    ]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([100, 80, 120], [[0, 1], [2]]),  # the second begins before the border at 150 and ends behind it; its middle is at 140
        ([80, 120, 100], [[0, 1], [2]]),  # at 140 again
        ([100, 120, 80], [[0], [1, 2]]),  # at 160
        ([120, 80, 100], [[0], [1, 2]]),
        ([100, 100, 100], [[0], [1, 2]]),  # on the border
        ([99, 101, 100], [[0, 1], [2]]),  # one byte before it
        ([300, 0], [[], [0, 1]]),
    ],
)
def test_files_that_cannot_be_cut_go_where_their_middle_is(sizes: list[int], expected: list[list[int]]) -> None:
    found = [list(pieces(sizes, lambda number: False, Slice(index, 2))) for index in range(2)]
    assert found == [[Piece(number, 0, sizes[number]) for number in numbers] for numbers in expected]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=10), st.integers(1, 7))
def test_each_file_is_where_its_middle_byte_is(sizes: list[int], count: int) -> None:
    """With the bytes counted one by one; slice i of n has those from i/n of all to before (i + 1)/n."""
    owners = [number for number, size in enumerate(sizes) for _ in range(size)]
    for index in range(count):
        slice_bytes = [at for at in range(len(owners)) if index * len(owners) <= at * count < (index + 1) * len(owners)]
        middles = {sum(sizes[:number]) + size // 2: number for number, size in enumerate(sizes)}
        expected = [middles[at] for at in slice_bytes if at in middles]
        assert [piece.input for piece in pieces(sizes, lambda number: False, Slice(index, count))] == expected


def test_only_files_across_a_border_are_looked_at() -> None:
    asked: list[int] = []

    def can_be_cut(number: int) -> bool:
        asked.append(number)
        return True

    list(pieces([10] * 100, can_be_cut, Slice(1, 3)))
    assert set(asked) == {33, 66}
