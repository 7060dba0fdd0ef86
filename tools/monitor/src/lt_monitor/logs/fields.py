"""Numbers in a log line: which field of a record each one is, and how it becomes that field's unit.

A line of numbers is described by the places of its values, so that the same description serves to read one line and, as a
`layouts.LineTemplate`, thousands of lines that look alike.
"""

import dataclasses
import math
import re
from typing import Any

from lt_monitor.events.records import MAXIMUM_COUNT, Record

MAXIMUM_DIGITS = 15
# Progress bars print rates with two decimals: those below are off by more than a tenth.
MINIMUM_RATE_PER_SECOND = 0.05

_TIME = re.compile(rb"\d{4}-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")
_UPPER_BOUNDS = (12, 31, 23, 59, 59)


@dataclasses.dataclass(frozen=True)
class Measure:
    """What a number is: `field` of the record, a count if `whole`, in base units after `number / divisor * factor`.

    `is_metric`: the field goes to the record's `metrics`. `is_time`: the text is a date and time, not a number. `is_constant`:
    what the rest of the line means depends on this number. `is_rate`: the number is per second and the field has seconds; a rate
    below MINIMUM_RATE_PER_SECOND is no number.
    """

    field: str
    whole: bool = False
    divisor: float = 1.0
    factor: float = 1.0
    is_metric: bool = False
    is_time: bool = False
    is_constant: bool = False
    is_rate: bool = False

    def read(self, text: bytes) -> Any:
        """The value in JSON's terms: None when it is not a finite number. Raises ValueError for no possible count."""
        if self.is_time:
            return read_time(text)
        number = math.nan if text == b"N/A" else float(text.replace(b",", b""))
        if not math.isfinite(number) or (self.is_rate and number < MINIMUM_RATE_PER_SECOND):
            return None
        if self.is_rate:
            return 1 / number
        value = number / self.divisor * self.factor
        if not self.whole:
            return value
        if not 0 <= value <= MAXIMUM_COUNT:
            raise ValueError(f"{self.field} is {value}")
        return round(value)


TIME = Measure("time", is_time=True)
TASK = Measure("task", whole=True)
RANK = Measure("rank", whole=True)

Value = tuple[Measure | None, int, int]
"""A measure and the begin and the end of its text in the line; without a measure: digits that differ from line to line."""


def decimal(text: bytes) -> float | None:
    """A number that a pattern only roughly found; None when it is none or not finite."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def read_time(text: bytes) -> str | None:
    """ISO 8601 with a point before the fraction; None for digits that are no time: two processes wrote at once."""
    match = _TIME.match(text)
    if match is None or any(int(part) > bound for part, bound in zip(match.groups(), _UPPER_BOUNDS, strict=True)):
        return None
    return text.replace(b" ", b"T", 1).replace(b",", b".").decode("ascii")


def read_values(text: bytes, values: list[Value]) -> Record:
    """The fields of a line. Raises ValueError when a count is negative or larger than any can be."""
    record: Record = {}
    for measure, begin, end in values:
        if measure is None:
            continue
        value = measure.read(text[begin:end])
        if measure.is_metric:
            record.setdefault("metrics", {})[measure.field] = value
        elif not measure.is_time or value is not None:
            record[measure.field] = value
    return record
