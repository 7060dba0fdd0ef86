"""Findings of alerts. Each finding is printed once, on one line.

A finding belongs to a run and a rule, and is new if the state file does not have its key. Its text comes from logs, which are
untrusted, so `escaping.printable` escapes everything that a terminal would interpret.
"""

import dataclasses
from typing import Any, Self

from lt_monitor.events.escaping import printable
from lt_monitor.events.records import SEVERITIES, Record

MACHINE_KINDS = ("gpu", "neuron")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One problem of a run. `key` identifies the finding across passes; `fields` (step, rank, node, xid) are for programs."""

    rule: str
    severity: str
    run: str
    key: str
    message: str
    fields: Record = dataclasses.field(default_factory=dict)

    def line(self) -> str:
        """Format for people: `CRITICAL hang run1: no step for 12 min`."""
        return f"{self.severity.upper()} {self.rule} {printable(self.run)}: {printable(self.message)}"

    def to_record(self) -> Record:
        return {"v": 1, "kind": "finding", **dataclasses.asdict(self)}

    @classmethod
    def from_record(cls, record: Record) -> Self:
        """Raises TypeError when the record is not a finding."""
        return cls(**{key: value for key, value in record.items() if key not in ("v", "kind")})


def worst(severities: Any) -> str:
    """Return the most severe of `severities`, or `info` if there is none."""
    return min(severities, key=SEVERITIES.index, default="info")


def duration(seconds: float) -> str:
    """Format a duration for people: `45 s`, `12 min`, `3.5 h`, `2.1 d`."""
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.1f} d"
