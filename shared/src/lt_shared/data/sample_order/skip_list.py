"""The samples that a run leaves out, by their numbers from 0: a step has those from the consumed samples before it on.

A file has a number or a range `a-b`, both ends included, on each line, or the lines that `lt-monitor blame` prints:

    {"v":1,"kind":"skip","samples":[640,647]}

`#` begins a comment. Ranges are kept, not numbers: a list may leave out a day of training.
"""

import bisect
import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Self

from lt_shared.console import BadData
from lt_shared.files import storage, strict_json

VERSION = 1
_RANGE = re.compile(r"([0-9]{1,18})(?:\s*-\s*([0-9]{1,18}))?")
_EXPECTED = 'a sample number, a range such as 640-647, or {"v":1,"kind":"skip","samples":[640,647]}'


@dataclasses.dataclass(frozen=True)
class SkipList:
    """`ranges` are (first, last), ascending and apart from each other."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Self:
        """From ranges in any order, which may overlap."""
        joined: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(joined[-1][1], last))
            else:
                joined.append((first, last))
        return cls(tuple(joined))

    @classmethod
    def read(cls, path: str) -> Self:
        """Raises NoInput, and BadData for a line that is none, or a file of none."""
        try:
            text = storage.read_bytes(path).decode()
        except UnicodeDecodeError:
            raise BadData(f"{path}: not text", f"each line is {_EXPECTED}") from None
        ranges = list(_parsed(text, path))
        if not ranges:
            raise BadData(f"{path}: no sample to skip in it", f"each line is {_EXPECTED}")
        return cls.of(ranges)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse numbers and ranges separated by commas. Raises ValueError with the first invalid item."""
        return cls.of(_range(word.strip()) for word in text.split(","))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, number: int) -> bool:
        return bool(self.within(range(number, number + 1)))

    def within(self, numbers: range) -> list[int]:
        """Return the skipped numbers in the range `numbers`."""
        if not self.ranges:
            return []
        at = bisect.bisect_left(self.ranges, numbers.start, key=lambda skipped: skipped[1])
        skipped_numbers: list[int] = []
        while at < len(self.ranges) and self.ranges[at][0] < numbers.stop:
            first, last = self.ranges[at]
            skipped_numbers.extend(range(max(first, numbers.start), min(last + 1, numbers.stop)))
            at += 1
        return skipped_numbers

    def count(self, before: int) -> int:
        """Count the skipped numbers below `before`."""
        return sum(min(last + 1, before) - first for first, last in self.ranges if first < before)

    def lines(self) -> list[str]:
        """Encode the list as the lines of a file."""
        records = ({"v": VERSION, "kind": "skip", "samples": list(skipped)} for skipped in self.ranges)
        return [json.dumps(record, separators=(",", ":")) for record in records]

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ranges)


def _parsed(text: str, path: str) -> Iterator[tuple[int, int]]:
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.split("#", 1)[0].strip() if not line.lstrip().startswith("{") else line.strip()
        if not stripped:
            continue
        try:
            skipped = _of_record(strict_json.loads(stripped)) if stripped.startswith("{") else _range(stripped)
        except ValueError as error:
            raise BadData(f"{path}, line {number}: {error}", f"each line is {_EXPECTED}") from None
        if skipped:
            yield skipped


def _of_record(record: dict[str, Any]) -> tuple[int, int] | None:
    """The range of a line; None for the line that ends a manifest."""
    if record.get("v") != VERSION:
        raise ValueError(f"version {record.get('v')!r:.20}, known is {VERSION}")
    if record.get("kind") == "end":
        return None
    samples = record.get("samples")
    if record.get("kind") != "skip":
        raise ValueError(f"a line of kind {record.get('kind')!r:.40}")
    if not isinstance(samples, list) or len(samples) != 2 or any(type(bound) is not int for bound in samples):
        raise ValueError(f"samples is {samples!r:.40}, must be the first and the last")
    return _ordered(samples[0], samples[1])


def _range(text: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.40} is no number and no range")
    return _ordered(int(match[1]), int(match[2] or match[1]))


def _ordered(first: int, last: int) -> tuple[int, int]:
    if not 0 <= first <= last:
        raise ValueError(f"{first} to {last} is no range")
    return first, last
