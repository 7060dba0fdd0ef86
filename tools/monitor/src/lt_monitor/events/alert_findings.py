"""What an alert says: one finding a line, once.

A finding is about a run and a rule; a key that is not in the state file makes it a new one. Its text comes from logs, which are
untrusted: `escaping.printable` escapes everything that a terminal would interpret.
"""

import dataclasses
from typing import Any, Self

from lt_monitor.events.escaping import printable
from lt_monitor.events.records import SEVERITIES, Record

MACHINE_KINDS = ("gpu", "neuron")


@dataclasses.dataclass(frozen=True)
class Finding:
    """`key` is the same for the same finding in every pass; `fields` are for programs, such as step, rank, node or xid."""

    rule: str
    severity: str
    run: str
    key: str
    message: str
    fields: Record = dataclasses.field(default_factory=dict)

    def line(self) -> str:
        """For people: `CRITICAL hang run1: no step for 12 min`."""
        return f"{self.severity.upper()} {self.rule} {printable(self.run)}: {printable(self.message)}"

    def to_record(self) -> Record:
        return {"v": 1, "kind": "finding", **dataclasses.asdict(self)}

    @classmethod
    def from_record(cls, record: Record) -> Self:
        """Raises TypeError when the record is none."""
        return cls(**{key: value for key, value in record.items() if key not in ("v", "kind")})


def worst(severities: Any) -> str:
    """The most severe one; `info` when there is none."""
    return min(severities, key=SEVERITIES.index, default="info")


def duration(seconds: float) -> str:
    """As people say it: `45 s`, `12 min`, `3.5 h`, `2.1 d`."""
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.1f} d"
