"""The formats of log lines, one module for each trainer or source of faults.

A parser takes a `lines.Line` and returns a `StepLine` for a training step, a record with `kind` and fields for another event, or
None. `table.PARSERS` says which parsers a line goes to.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from lt_monitor.events.records import MESSAGE_CHARACTERS, Record
from lt_monitor.logs.fields import RANK, TASK, TIME, Value
from lt_monitor.logs.lines import Line

LABELS = (RANK, TASK, TIME)


class StepLine(NamedTuple):
    """A training step's line: where its values are, and where what the trainer printed begins and ends in the text.

    Without `begin` or `end`, at its first value or its last. What stands outside was printed by others and is read, too.
    `record` is the step where its values alone do not make it; such lines are read one by one.
    """

    values: list[Value]
    begin: int | None = None
    end: int | None = None
    record: Record | None = None

    def span(self) -> tuple[int, int]:
        fields = [(begin, end) for field, begin, end in self.values if field not in LABELS] or [(0, 0)]
        begin = min(begin for begin, _ in fields) if self.begin is None else self.begin
        return begin, max(end for _, end in fields) if self.end is None else self.end


Parser = Callable[[Line], StepLine | Record | None]


def fault(line: Line, name: str, cause: str, severity: str, begin: int | None = None, **fields: Any) -> Record:
    """A fault record whose message is the line from `begin`, by default from where the launcher's prefixes end."""
    return {
        "kind": "fault",
        "fault": name,
        "cause": cause,
        "severity": severity,
        "message": message(line, begin),
        **{field: value for field, value in fields.items() if value is not None},
    }


def note(line: Line, name: str, fields: Record, begin: int | None = None) -> Record:
    return {"kind": "note", "note": name, "message": message(line, begin), "fields": fields}


def last_match(pattern: re.Pattern[bytes], text: bytes) -> re.Match[bytes] | None:
    """The last match of a pattern: an unfinished line of a process that died may come before it."""
    found = None
    for match in pattern.finditer(text):
        found = match
    return found


def message(line: Line, begin: int | None = None) -> str:
    return line.decode(line.body if begin is None else begin).strip()[:MESSAGE_CHARACTERS]
