"""Compare and convert digits in many rows of text, eight bytes per operation (SIMD within a register).

The step lines of a run have the same length and differ only in digits. Rows are compared with a sample, and their numbers
converted, as 64-bit words: 45 words for a line of 360 bytes, an eighth of the operations that bytes need. Daniel Lemire describes
the conversion of eight digits by three multiplications in "Quickly parsing eight digits" (2018).
"""

from collections.abc import Iterator

import numpy as np

WORD_BYTES = 8
_ZERO, _BIT = 0x30, 0x10
_HIGH_NIBBLE, _HIGH_BITS = 0xF0, 0xE0
_LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_TO_CARRY = {9: np.uint64(0x0606060606060606), 0: np.uint64(0x0F0F0F0F0F0F0F0F)}
_BYTE = np.uint64(8)
# Each step joins neighbours into one number: digits to pairs, pairs to fours, fours to eights.
_JOIN = tuple(
    (np.uint64(factor), np.uint64(shift), np.uint64(mask))
    for factor, shift, mask in ((10, 8, 0x00FF00FF00FF00FF), (100, 16, 0x0000FFFF0000FFFF), (10_000, 32, 0x00000000FFFFFFFF))
)
# Below this number of digits, reading one column at a time is faster than the word.
SHORT = 3
ROWS = 512


class RowPattern:
    """Finds the rows that differ from a sample only in digits.

    `sample` (uint8) is a row. `variable` (bool) marks the bytes that may hold any digit. `padding` (bool) marks the bytes that
    may also hold a space: before a number, but not after one of its digits. Rows have `width` bytes, a multiple of eight; bytes
    after the sample's length are ignored.
    """

    def __init__(self, sample: np.ndarray, variable: np.ndarray, padding: np.ndarray):
        self.width = -(-len(sample) // WORD_BYTES) * WORD_BYTES
        follows = padding[1:] & variable[:-1]
        self._sample = self._words(np.where(variable, _ZERO, sample))
        self._constant = self._words(np.where(padding, _HIGH_BITS, np.where(variable, _HIGH_NIBBLE, 0xFF)))
        digit = self._words(np.where(variable, _BIT, 0))
        self._chosen = np.flatnonzero(digit)
        self._digit = digit[self._chosen]
        self._padding = self._words(np.where(padding, _BIT, 0))[self._chosen]
        # Within a word, one shift aligns each byte with its predecessor. The first byte of a word has its predecessor in another
        # word, so `_starts` lists these bytes and `_matches` compares them separately.
        self._follows = self._words(np.concatenate(([0], np.where(follows, _BIT, 0))))[self._chosen] & ~np.uint64(0xFF)
        starts = np.flatnonzero(follows) + 1
        self._starts = starts[starts % WORD_BYTES == 0]

    def matches(self, rows: np.ndarray) -> np.ndarray:
        """Return which rows (uint8, shape (lines, width), contiguous) have this pattern (bool)."""
        # ROWS rows with their temporaries stay in a core's cache.
        parts = [self._matches(rows[begin : begin + ROWS]) for begin in range(0, len(rows), ROWS)]
        return np.concatenate(parts) if parts else np.empty(0, bool)

    def _matches(self, rows: np.ndarray) -> np.ndarray:
        words = rows.view("<u8")
        wrong: np.ndarray = np.bitwise_or.reduce((words ^ self._sample) & self._constant, axis=1)
        words = words[:, self._chosen]
        is_other = ~words
        low = words & _LOW_NIBBLES
        bad = (low + _TO_CARRY[9]) & self._digit
        # A padding byte must be a digit (0x3_) or a space (0x20). A byte without bit 0x10 is no digit. Its high nibble is 2,
        # because the constant bits were compared above, and a nonzero low nibble carries into bit 0x10 here: any byte but a space
        # is bad.
        low += _TO_CARRY[0]
        low &= is_other
        low &= self._padding
        bad |= low
        words <<= _BYTE
        is_other &= words
        is_other &= self._follows
        bad |= is_other
        wrong |= np.bitwise_or.reduce(bad, axis=1)
        alike = wrong == 0
        if len(self._starts):
            before, after = rows[:, self._starts - 1], rows[:, self._starts]
            alike &= ~((before & ~after & _BIT) != 0).any(axis=1)
        return np.asarray(alike)

    def _words(self, row: np.ndarray) -> np.ndarray:
        padded = np.zeros(self.width, np.uint8)
        padded[: len(row)] = row
        return padded.view("<u8")


def integer(rows: np.ndarray, columns: list[int]) -> np.ndarray:
    """Read the digits in `columns` as one integer (int64) per row (uint8, contiguous). A space counts as zero."""
    number: np.ndarray | None = None
    for begin, end in _runs(columns):
        part = _one_run(rows, begin, end)
        number = part if number is None else number * 10 ** (end - begin) + part
    return np.zeros(len(rows), np.int64) if number is None else number


def _runs(columns: list[int]) -> Iterator[tuple[int, int]]:
    """Split the columns into runs of at most eight without a gap."""
    begin = 0
    for index in range(1, len(columns) + 1):
        if index == len(columns) or columns[index] != columns[index - 1] + 1 or index - begin == WORD_BYTES:
            yield columns[begin], columns[index - 1] + 1
            begin = index


def _one_run(rows: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Read the number in the columns from `begin` to before `end`, at most eight columns."""
    if end - begin < SHORT or end < WORD_BYTES:
        number = np.zeros(len(rows), np.int64)
        for column in range(begin, end):
            number *= 10
            number += rows[:, column] & 15
        return number
    words = np.ndarray((len(rows),), "<u8", rows, end - WORD_BYTES, (rows.shape[1],))
    unused = WORD_BYTES - (end - begin)
    pairs = words & (_LOW_NIBBLES >> np.uint64(8 * unused) << np.uint64(8 * unused))
    for factor, shift, mask in _JOIN:
        right = pairs >> shift
        pairs *= factor
        pairs += right
        pairs &= mask
    return pairs.view(np.int64)
