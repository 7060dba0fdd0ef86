"""The contiguous slices of the input that shards tokenize.

Slice i of n begins at i/n of the stored bytes. A file of plain lines is cut there, between two lines; a file that can only be
read from its beginning (compressed, Parquet, one plain text) belongs as a whole to the slice that has its middle byte. All slices
in order are the whole input.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from lt_shared.console.shard_option import WHOLE as WHOLE
from lt_shared.console.shard_option import Slice as Slice


class Piece(NamedTuple):
    """A byte range of an input: the lines whose first byte lies at or after `begin` and before `stop`, in stored bytes."""

    input: int
    begin: int
    stop: int


def pieces(sizes: Sequence[int], can_be_cut: Callable[[int], bool], part: Slice) -> Iterator[Piece]:
    """Yield the pieces of slice `part` of inputs with `sizes` bytes. `can_be_cut` is called for inputs that span two slices."""
    total = sum(sizes)
    first, last = (-(-total * index // part.count) for index in (part.index, part.index + 1))
    before = 0
    for number, size in enumerate(sizes):
        begin, stop = max(first - before, 0), min(last - before, size)
        if size and begin < stop and (stop - begin == size or can_be_cut(number)):
            yield Piece(number, begin, stop)
        elif _holds(part, before + size // 2, total) and (size == 0 or not can_be_cut(number)):
            yield Piece(number, 0, size)
        before += size


def _holds(part: Slice, offset: int, total: int) -> bool:
    """Whether the slice contains the byte at `offset` in the concatenated inputs."""
    return min(offset * part.count // total if total else 0, part.count - 1) == part.index
