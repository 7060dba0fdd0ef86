"""Store the steps of a run as columns: one NumPy array per field instead of one object per step.

A million steps as dicts take 2 GB and seconds to build; columns take 8 bytes per value. Single records and blocks of lines that
were parsed together become columns.
"""

import dataclasses
import datetime
import functools
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np

from lt_monitor.events.records import Record

# More than any trainer prints. A log with a new name in every line must not create a column per line.
MAXIMUM_COLUMNS = 512
_NOT_NUMBERS = frozenset({"v", "kind", "run", "src", "time", "step", "rank", "task", "node", "metrics"})


@dataclasses.dataclass(frozen=True)
class Steps:
    """`numbers` (int64) are the steps, ascending; `columns` their fields (float64), `times` seconds since 1970 (float64).

    All arrays have the shape (points,). A value is NaN where the line does not have the field, and infinite where the line has it
    but no finite number (`loss: nan`). Fields of `metrics` are columns under the names that the log gives them.
    """

    numbers: np.ndarray
    columns: dict[str, np.ndarray]
    times: np.ndarray

    @classmethod
    def empty(cls) -> Self:
        return cls(np.empty(0, np.int64), {}, np.empty(0))

    @classmethod
    def from_records(cls, records: Sequence[Record]) -> "Steps":
        """Build columns from step records in any order; `join` merges records with the same step."""
        size = len(records)
        columns: dict[str, np.ndarray] = {}
        for index, record in enumerate(records):
            metrics = record.get("metrics")
            for field, value in (*record.items(), *metrics.items()) if metrics else record.items():
                if field in _NOT_NUMBERS or not (value is None or isinstance(value, (int, float))):
                    continue
                if field not in columns:
                    if len(columns) >= MAXIMUM_COLUMNS:
                        continue
                    columns[field] = np.full(size, np.nan)
                columns[field][index] = np.inf if value is None else value
        numbers = np.fromiter((record["step"] for record in records), np.int64, size)
        times = np.fromiter((epoch_seconds(record.get("time")) for record in records), np.float64, size)
        return cls.join([cls(numbers, columns, times)])

    @classmethod
    def concatenate(cls, parts: Sequence["Steps"]) -> Self:
        """Concatenate the parts without sorting the steps."""
        names = list(dict.fromkeys(name for part in parts for name in part.columns))[:MAXIMUM_COLUMNS]
        columns = {name: np.concatenate([part.column(name) for part in parts]) for name in names}
        return cls(np.concatenate([part.numbers for part in parts]), columns, np.concatenate([part.times for part in parts]))

    @classmethod
    def join(cls, parts: Iterable["Steps"]) -> "Steps":
        """Merge the parts in ascending order of steps. If a step occurs twice, its last value that is not absent wins."""
        present = [part for part in parts if len(part)]
        if not present:
            return cls.empty()
        whole = present[0] if len(present) == 1 else cls.concatenate(present)
        numbers = whole.numbers
        if bool((numbers[1:] > numbers[:-1]).all()):
            return whole
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        # Indices of the steps' first rows.
        firsts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
        columns = {name: _last_present(column[order], firsts) for name, column in whole.columns.items()}
        return cls(numbers[firsts], columns, _last_present(whole.times[order], firsts))

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, chosen: slice | np.ndarray) -> "Steps":
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return Steps(self.numbers[chosen], columns, self.times[chosen])

    def column(self, field: str) -> np.ndarray:
        """Return the values of a field; every value is NaN if no line had the field."""
        column = self.columns.get(field)
        return np.full(len(self), np.nan) if column is None else column

    def finite(self, field: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the finite values of the field with their steps, as a curve needs them."""
        column = self.column(field)
        is_finite = np.isfinite(column)
        return self.numbers[is_finite], column[is_finite]

    def last(self, field: str) -> float | None:
        """Return the newest finite value of the field."""
        finite_indexes = np.flatnonzero(np.isfinite(self.column(field)))
        return float(self.column(field)[finite_indexes[-1]]) if len(finite_indexes) else None


def _last_present(values: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """Return per group the last value that is not NaN, or NaN. `firsts` has the groups' first indices."""
    indexes = np.where(np.isnan(values), -1, np.arange(len(values)))
    last = np.maximum.reduceat(indexes, firsts)
    return np.where(last < firsts, np.nan, values[last])


def epoch_seconds(text: object) -> float:
    """Return the seconds since 1970 of an ISO 8601 time (local if it has no zone); NaN for any other text.

    The zone's offset is computed once per hour and cached, which saves seconds on a column of a million times.
    """
    if not isinstance(text, str):
        return float("nan")
    try:
        if is_local(text):
            return _local_hour(text[:13]) + int(text[14:16]) * 60 + float(text[17:])
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return float("nan")


def is_local(text: str) -> bool:
    """Whether a time has the form 2026-01-16T07:32:24.123456, with or without a fraction, and no zone."""
    return (
        len(text) >= 19
        and text[10] in " T"
        and text[16] == ":"
        and (len(text) == 19 or (text[19] == "." and text[20:].isdigit()))
    )


@functools.lru_cache(maxsize=1024)
def _local_hour(text: str) -> float:
    return datetime.datetime.fromisoformat(text + ":00").timestamp()
