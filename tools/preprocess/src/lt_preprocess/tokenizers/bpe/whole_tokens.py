"""A hash table for compiled code, from the bytes of a token to its id: open addressing, tokens compared byte by byte."""

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lt_preprocess.compiler.intrinsics import address, load8, load64, signed, store64
from lt_preprocess.compiler.jit import inner, kernel
from lt_preprocess.texts import Texts

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Pieces(NamedTuple):
    """The addresses of `PieceTable`; `mask` is the number of slots less one, or -1 when there are no pieces."""

    slots: int
    mask: int
    data: int
    offsets: int
    ids: int


class PieceTable(NamedTuple):
    """Owns the arrays. `slots` int64 [slots], the index of a piece or -1; `texts`, the pieces; `ids` int64 [pieces]."""

    slots: npt.NDArray[np.int64]
    texts: Texts
    ids: npt.NDArray[np.int64]

    def addresses(self: Self) -> Pieces:
        mask = len(self.slots) - 1 if len(self.ids) else -1
        return Pieces(address(self.slots), mask, address(self.texts.data), address(self.texts.offsets), address(self.ids))


def build_pieces(ids: dict[bytes, int]) -> PieceTable:
    slots = 1 << max(4, (4 * len(ids)).bit_length())
    table = PieceTable(np.full(slots, -1, np.int64), Texts.from_list(list(ids)), np.fromiter(ids.values(), np.int64, len(ids)))
    _fill(table.addresses(), len(ids))
    return table


@inner
def _hash_of(start: int, size: int) -> np.uint64:
    value = np.uint64(size)
    for at in range(start, start + size):
        value = (value ^ np.uint64(load8(at))) * _MULTIPLIER
    return value ^ value >> np.uint64(32)


@kernel
def _fill(pieces: Pieces, count: int) -> None:
    for number in range(count):
        start, end = signed(load64(pieces.offsets + 8 * number)), signed(load64(pieces.offsets + 8 * number + 8))
        slot = signed(_hash_of(pieces.data + start, end - start)) & pieces.mask
        while signed(load64(pieces.slots + 8 * slot)) >= 0:
            slot = (slot + 1) & pieces.mask
        store64(pieces.slots + 8 * slot, np.uint64(number))


@inner
def find_piece(pieces: Pieces, start: int, size: int) -> int:
    """The id of the piece that equals the bytes at `start`, or -1."""
    if pieces.mask < 0:
        return -1
    slot = signed(_hash_of(start, size)) & pieces.mask
    while True:
        number = signed(load64(pieces.slots + 8 * slot))
        if number < 0:
            return -1
        first = signed(load64(pieces.offsets + 8 * number))
        if signed(load64(pieces.offsets + 8 * number + 8)) - first == size:
            index = 0
            while index < size and load8(pieces.data + first + index) == load8(start + index):
                index += 1
            if index == size:
                return signed(load64(pieces.ids + 8 * number))
        slot = (slot + 1) & pieces.mask
