"""Read lines that differ only in digits, one column at a time.

A trainer prints its numbers with fixed formats, so the step lines of a run have only a few shapes. Two lines have the same shape
if they differ only in the digits of their values. The trainer's parser reads the first line of a shape. The `LineTemplate` made
from it reads the other lines of a block together: it compares the constant bytes, converts columns of digits to integers, and
scales. The values equal `Field.read` to the last bit, because both divide one exact integer by one exact power of ten. A line of
300 bytes takes 1 microsecond; its parser takes 15. A word in the place of a number (nan, N/A) makes another shape.
"""

import re
from collections.abc import Sequence
from typing import Self

import numpy as np

from lt_monitor.events.records import MAXIMUM_COUNT
from lt_monitor.events.steps import epoch_seconds, is_local
from lt_monitor.logs.fast.digit_words import RowPattern, integer
from lt_monitor.logs.fields import MAXIMUM_DIGITS, MINIMUM_RATE_PER_SECOND, Field, Value
from lt_monitor.logs.lines import Line

MAXIMUM_EXPONENT = 22
_POWERS = np.array([10.0**exponent for exponent in range(MAXIMUM_EXPONENT + 1)])
_PLAIN_NUMBER = re.compile(
    rb"(?P<sign>[-+]?)(?P<mantissa>[\d,]+(?:\.\d*)?)(?:[eE](?P<exponent_sign>[-+]?)(?P<exponent>\d{1,2}))?"
)
_DIGIT = 48
HOUR_BYTES = len("2026-01-16T07")
# Month, day, hour, minute and second in "2026-01-16T07:32:24".
_TIME_BOUNDS = ((5, 12), (8, 31), (11, 23), (14, 59), (17, 59))


class Column:
    """The positions of a value's digits in a line, and the conversion of the digits to the number."""

    def __init__(self, field: Field, text: bytes, begin: int):
        self.field = field
        self.begin, self.end = begin, begin + len(text)
        self.digits: list[int] = []
        self.exponent_digits: list[int] = []
        self.decimals = 0
        self.is_null = False
        self.is_negative = False
        self.exponent_sign = 1
        if field.is_time:
            return
        match = _PLAIN_NUMBER.fullmatch(text)
        if match is None:
            self.is_null = True
            return
        mantissa = match["mantissa"]
        self.digits = [begin + match.start("mantissa") + index for index, byte in enumerate(mantissa) if byte not in b",."]
        self.decimals = len(mantissa) - mantissa.index(b".") - 1 if b"." in mantissa else 0
        self.is_negative = match["sign"] == b"-"
        if match["exponent"]:
            self.exponent_digits = list(range(begin + match.start("exponent"), begin + match.end("exponent")))
            self.exponent_sign = -1 if match["exponent_sign"] == b"-" else 1

    def is_exact(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows (bool) whose power of ten float64 holds exactly, so that `read` equals Python's `float`."""
        return integer(rows, self.exponent_digits) + self.decimals <= MAXIMUM_EXPONENT

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return the values (float64) of the rows (uint8, one line per row) in base units; infinite for a word such as nan."""
        if self.is_null:
            return np.full(len(rows), np.inf)
        number = integer(rows, self.digits).astype(np.float64)
        if self.exponent_digits:
            exponent = integer(rows, self.exponent_digits) * self.exponent_sign - self.decimals
            power = _POWERS[np.abs(exponent)]
            number = np.where(exponent < 0, number / power, number * power)
        elif self.decimals:
            number /= _POWERS[self.decimals]
        if self.is_negative:
            number = -number
        if self.field.is_rate:
            return np.where(number < MINIMUM_RATE_PER_SECOND, np.inf, 1 / np.maximum(number, MINIMUM_RATE_PER_SECOND))
        value = number / self.field.divisor * self.field.factor
        return np.rint(value) if self.field.is_count else value


class LineTemplate:
    """One shape of line. `columns` are in the order of a record's fields; all lines of the shape name the same `node`."""

    def __init__(self, sample: np.ndarray, columns: list[Column], variable: np.ndarray, padding: np.ndarray, node: str | None):
        self.length = len(sample)
        self.columns = columns
        self.node = node
        self._pattern = RowPattern(sample, variable, padding)
        self._time = next((column for column in columns if column.field.is_time), None)

    @classmethod
    def from_line(cls, raw: bytes, line: Line, values: list[Value], unread_digits: Sequence[int] = ()) -> Self | None:
        """Make the template of a parsed line (without its newline); return None if a number has too many digits to be exact.

        The digits at the indexes `unread_digits` belong to no value and may be others in other lines.
        """
        sample = np.frombuffer(raw, dtype=np.uint8)
        variable = np.zeros(len(raw), dtype=bool)
        padding = np.zeros(len(raw), dtype=bool)
        variable[np.array(unread_digits, dtype=np.int64)] = True
        columns = []
        for field, begin, end in values:
            text, start = line.text[begin:end], line.raw_index(begin)
            if raw[start : start + len(text)] != text:
                return None
            is_digit = (sample[start : start + len(text)] - _DIGIT) <= 9
            if field is None:
                variable[start : start + len(text)] = is_digit
                continue
            if _PLAIN_NUMBER.fullmatch(text) is None and field.read(text) is not None and not field.is_time:
                return None
            if field.is_count and not _is_small_count(field, text):
                return None
            column = Column(field, text, start)
            if field.is_count and column.exponent_digits:
                # `_is_small_count` has checked this exponent only, so the exponent's digits must be the same in all lines.
                is_digit[column.exponent_digits[0] - start :] = False
            if field.is_constant:
                columns.append(column)
                continue
            variable[start : start + len(text)] = is_digit
            if not field.is_time and not column.is_null:
                spaces = _padding(raw, start)
                variable[start - spaces : start] = padding[start - spaces : start] = True
                column.digits = [*range(start - spaces, start), *column.digits]
                if len(column.digits) > MAXIMUM_DIGITS:
                    return None
            columns.append(column)
        return cls(sample, columns, variable, padding, line.node)

    @property
    def width(self) -> int:
        """The number of bytes in a row: the line length rounded up to whole words."""
        return self._pattern.width

    def matches(self, rows: np.ndarray) -> np.ndarray:
        """Return which rows (uint8, shape (lines, width), contiguous) have this template (bool)."""
        alike = self._pattern.matches(rows)
        for column in self.columns:
            if column.exponent_digits:
                alike &= column.is_exact(rows)
        if self._time is not None:
            alike &= self._is_time(rows)
        return alike

    def _is_time(self, rows: np.ndarray) -> np.ndarray:
        assert self._time is not None
        valid = np.ones(len(rows), dtype=bool)
        for index, bound in _TIME_BOUNDS:
            valid &= integer(rows, [self._time.begin + index, self._time.begin + index + 1]) <= bound
        return valid

    def values(self, column: Column, rows: np.ndarray) -> np.ndarray:
        """Return a column's values in the type of its field: int64 for counts, bytes for the time, float64 for other numbers."""
        if column.field.is_time:
            times = self.times(rows)
            assert times is not None
            return times
        values = column.read(rows)
        return values.astype(np.int64) if column.field.is_count and not column.is_null else values

    def times(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the rows' times as ISO 8601 text (bytes, shape (lines,)); None if the lines have no time."""
        if self._time is None:
            return None
        text = rows[:, self._time.begin : self._time.end].copy()
        text[:, 10] = ord("T")
        text[text == ord(",")] = ord(".")
        return text.view(f"S{text.shape[1]}").ravel()

    def epoch_seconds(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows' times in seconds since 1970 (float64); NaN if the lines have no time."""
        texts = self.times(rows)
        if texts is None or self._time is None:
            return np.full(len(rows), np.nan)
        begin, length = self._time.begin, texts.dtype.itemsize
        if not len(rows) or not is_local(texts[0].decode("ascii")):
            return np.array([epoch_seconds(text.decode("ascii")) for text in texts.tolist()])
        # Consecutive lines nearly always share their hour, so only the first line of an hour pays for a time zone lookup.
        hours = rows[:, begin : begin + HOUR_BYTES]
        changes = np.flatnonzero(np.concatenate(([True], (hours[1:] != hours[:-1]).any(axis=1))))
        hour_seconds = [epoch_seconds(texts[index][:HOUR_BYTES].decode("ascii") + ":00:00") for index in changes.tolist()]
        seconds = np.repeat(hour_seconds, np.diff(changes, append=len(rows)))
        seconds += integer(rows, [begin + 14, begin + 15]) * 60 + integer(rows, [begin + 17, begin + 18])
        fraction = list(range(begin + 20, begin + length))
        return np.asarray(seconds + integer(rows, fraction) / _POWERS[len(fraction)])


def _is_small_count(field: Field, text: bytes) -> bool:
    """Whether no count with as many digits as `text` exceeds MAXIMUM_COUNT."""
    match = _PLAIN_NUMBER.fullmatch(text)
    if match is None:
        return True
    digits = len(match["mantissa"].replace(b",", b"").partition(b".")[0]) + 2
    exponent = int(match["exponent"] or 0) if match["exponent_sign"] != b"-" else 0
    return 10.0 ** (digits + exponent) / field.divisor * field.factor <= MAXIMUM_COUNT


def _padding(raw: bytes, begin: int) -> int:
    """Count the spaces before a number that may be digits in other lines: all but the one separating space."""
    spaces = begin - len(raw[:begin].rstrip(b" "))
    return max(0, spaces - 1)
