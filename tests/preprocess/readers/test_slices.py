"""The parts of the input, one after the other, are the whole input, and about equal."""

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


def test_files_that_cannot_be_cut_go_where_their_middle_is() -> None:
    found = [list(pieces([100, 100, 100], lambda number: False, Slice(index, 2))) for index in range(2)]
    assert found == [[Piece(0, 0, 100)], [Piece(1, 0, 100), Piece(2, 0, 100)]]


def test_only_files_across_a_border_are_looked_at() -> None:
    asked: list[int] = []

    def can_be_cut(number: int) -> bool:
        asked.append(number)
        return True

    list(pieces([10] * 100, can_be_cut, Slice(1, 3)))
    assert set(asked) == {33, 66}
