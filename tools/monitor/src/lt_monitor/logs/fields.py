"""Map the numbers in a log line to fields of a record, and convert them to the field's unit.

A parser describes a line by the begin and the end of its values. The same description reads one line here, and thousands of lines
that differ only in digits as a `line_templates.LineTemplate`.
"""

import dataclasses
import math
import re
from typing import Any

from lt_monitor.events.records import MAXIMUM_COUNT, Record

MAXIMUM_DIGITS = 15
# Progress bars print rates with two decimals: below this one the rounding error is more than a tenth.
MINIMUM_RATE_PER_SECOND = 0.05

_TIME = re.compile(rb"\d{4}-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")
_UPPER_BOUNDS = (12, 31, 23, 59, 59)


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a record. `number / divisor * factor` converts a printed number to base units; `is_count`: to an integer.

    `is_metric`: the field goes to the record's `metrics`. `is_time`: the text is a date and time, not a number. `is_constant`:
    the number decides how the rest of the line is read. `is_rate`: the number is per second and the field has seconds; a rate
    below MINIMUM_RATE_PER_SECOND becomes None.
    """

    name: str
    is_count: bool = False
    divisor: float = 1.0
    factor: float = 1.0
    is_metric: bool = False
    is_time: bool = False
    is_constant: bool = False
    is_rate: bool = False

    def read(self, text: bytes) -> Any:
        """For JSON: None when it is not a finite number. Raises ValueError for a count below 0 or above MAXIMUM_COUNT."""
        if self.is_time:
            return read_time(text)
        number = math.nan if text == b"N/A" else float(text.replace(b",", b""))
        if not math.isfinite(number) or (self.is_rate and number < MINIMUM_RATE_PER_SECOND):
            return None
        if self.is_rate:
            return 1 / number
        value = number / self.divisor * self.factor
        if not self.is_count:
            return value
        if not 0 <= value <= MAXIMUM_COUNT:
            raise ValueError(f"{self.name} is {value}")
        return round(value)


TIME = Field("time", is_time=True)
TASK = Field("task", is_count=True)
RANK = Field("rank", is_count=True)

Value = tuple[Field | None, int, int]
"""A field, and the begin and end of its text in the line. The field is None for digits that vary but mean nothing."""


def decimal(text: bytes) -> float | None:
    """Convert a text that a pattern matched loosely; return None if it is not a finite number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def read_time(text: bytes) -> str | None:
    """Return ISO 8601 with a point before the fraction; None for an impossible time, e.g. if two processes wrote at once."""
    match = _TIME.match(text)
    if match is None or any(int(part) > bound for part, bound in zip(match.groups(), _UPPER_BOUNDS, strict=True)):
        return None
    return text.replace(b" ", b"T", 1).replace(b",", b".").decode("ascii")


def read_values(text: bytes, values: list[Value]) -> Record:
    """Read the fields of a line. Raises ValueError for a count below 0 or above MAXIMUM_COUNT."""
    record: Record = {}
    for field, begin, end in values:
        if field is None:
            continue
        value = field.read(text[begin:end])
        if field.is_metric:
            record.setdefault("metrics", {})[field.name] = value
        elif not field.is_time or value is not None:
            record[field.name] = value
    return record
