"""The contiguous parts of the input that the tasks of one job share.

Part i of n begins at i/n of the stored bytes. A file of plain lines is cut there, between two lines; a file that can only be read
from its beginning (compressed, Parquet, one plain text) goes whole to the part that holds its middle. All parts one after the
other are the whole input.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class Slice:
    """Part `index` (from 0) of `count`."""

    index: int = 0
    count: int = 1


WHOLE = Slice()


class Piece(NamedTuple):
    """A part of one input. It owns the lines whose first byte is at `begin` or behind it and before `stop`, in stored bytes."""

    input: int
    begin: int
    stop: int


def pieces(sizes: Sequence[int], can_be_cut: Callable[[int], bool], part: Slice) -> Iterator[Piece]:
    """The pieces of one part of inputs of `sizes` bytes. `can_be_cut` is asked for the few inputs that lie across a border."""
    total = sum(sizes)
    first, behind = (-(-total * index // part.count) for index in (part.index, part.index + 1))
    before = 0
    for number, size in enumerate(sizes):
        begin, stop = max(first - before, 0), min(behind - before, size)
        if size and begin < stop and (stop - begin == size or can_be_cut(number)):
            yield Piece(number, begin, stop)
        elif _holds(part, before + size // 2, total) and (size == 0 or not can_be_cut(number)):
            yield Piece(number, 0, size)
        before += size


def _holds(part: Slice, place: int, total: int) -> bool:
    return min(place * part.count // total if total else 0, part.count - 1) == part.index
