"""What saving and failing cost a run, as lt-train tells it: sums that are updated with each event and fit into a state file.

Of a checkpoint: how long training waited for it (its stall) and when it was complete, in SAVE ("shared") and on the nodes' own
disks ("local"). Of a failure: the seconds from the last step before it to the first one after it, with the search for what
had died, waiting in a queue, loading, and that step itself.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, Self

from lt_monitor.events.records import Record
from lt_shared.contracts.recovery_notes import LocalCheckpoint, Recovery

SHARED, LOCAL = "shared", "local"


@dataclasses.dataclass
class FaultCosts:
    """Sums. `stall_seconds` and `write_seconds` add up all `checkpoints` in a store. A store without checkpoints is absent.

    `local_step` is the step of the newest local checkpoint.
    """

    checkpoints: dict[str, int] = dataclasses.field(default_factory=dict)
    stall_seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    write_seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    local_step: int | None = None
    recoveries: int = 0
    recovery_seconds: float = 0.0
    last_recovery_seconds: float | None = None

    @classmethod
    def of(cls, records: Iterable[Record]) -> Self:
        costs = cls()
        for record in records:
            costs.take(record)
        return costs

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """Add up the costs of a run's jobs, in their order."""
        total = cls()
        for part in parts:
            for sums, more in ((total.stall_seconds, part.stall_seconds), (total.write_seconds, part.write_seconds)):
                for store, seconds in more.items():
                    sums[store] = sums.get(store, 0.0) + seconds
            for store, count in part.checkpoints.items():
                total.checkpoints[store] = total.checkpoints.get(store, 0) + count
            total.local_step = part.local_step if part.local_step is not None else total.local_step
            total.recoveries += part.recoveries
            total.recovery_seconds += part.recovery_seconds
            total.last_recovery_seconds = part.last_recovery_seconds or total.last_recovery_seconds
        return total

    def take(self, record: Record) -> None:
        if record["kind"] == "checkpoint":
            self._add(SHARED, record)
        elif record["kind"] == "note":
            fields = record.get("fields") or {}
            if record["note"] == LocalCheckpoint.NOTE:
                self._add(LOCAL, fields)
                self.local_step = fields.get("step", self.local_step)
            elif record["note"] == Recovery.NOTE and (seconds := _seconds(fields, "seconds")) is not None:
                self.recoveries += 1
                self.recovery_seconds += seconds
                self.last_recovery_seconds = seconds

    def _add(self, store: str, fields: Record) -> None:
        waited, seconds = _seconds(fields, "waited_seconds"), _seconds(fields, "seconds")
        if waited is None or seconds is None:
            return
        self.checkpoints[store] = self.checkpoints.get(store, 0) + 1
        self.stall_seconds[store] = self.stall_seconds.get(store, 0.0) + waited
        self.write_seconds[store] = self.write_seconds.get(store, 0.0) + seconds

    def per_checkpoint(self) -> dict[str, dict[str, float]]:
        """The number of checkpoints in each store, and the mean seconds per checkpoint."""
        return {
            store: {
                "count": count,
                "stall_seconds": round(self.stall_seconds[store] / count, 3),
                "write_seconds": round(self.write_seconds[store] / count, 3),
            }
            for store, count in self.checkpoints.items()
        }

    @property
    def mean_recovery_seconds(self) -> float | None:
        return round(self.recovery_seconds / self.recoveries, 3) if self.recoveries else None


def _seconds(fields: dict[str, Any], name: str) -> float | None:
    value = fields.get(name)
    return float(value) if isinstance(value, int | float) and 0 <= value < float("inf") else None
