"""How attempts ended: one answer for tables, reports and screens."""

import dataclasses

from lt_monitor.events.records import Record, ends_job
from lt_monitor.runs.attempts import Attempt
from lt_monitor.runs.faults.failure_causes import SCHEDULER_FAULTS, root_cause

# How Slurm ends jobs that did nothing wrong, and whose nodes did.
SCHEDULER_ENDINGS = (*SCHEDULER_FAULTS, "node-failure", "evicted")
FAILED = "failed"


@dataclasses.dataclass(frozen=True)
class Ending:
    """`reason` is the trainer's word, the scheduler's action, or `failed`. `fault` is what ended the attempt, if a fault did."""

    reason: str
    fault: Record | None

    @property
    def text(self) -> str:
        """The reason for people, with the fault that `failed` leaves open: `failed: out-of-memory`."""
        return f"{self.reason}: {self.fault['fault']}" if self.fault is not None and self.reason == FAILED else self.reason


def ending_faults(attempt: Attempt) -> list[Record]:
    """The faults after the last step that end a job. Once the log says that training is complete, only a root cause counts."""
    faults = [event for event in attempt.closing if event["kind"] == "fault" and ends_job(event)]
    if attempt.end is None or attempt.end["reason"] != "completed":
        return faults
    return [fault for fault in faults if fault["cause"] == "root" and fault["severity"] == "critical"]


def ending_of(attempt: Attempt) -> Ending | None:
    """How the attempt ended. None if the log shows no end."""
    cause = root_cause(ending_faults(attempt))
    if attempt.end is not None:
        return Ending(str(attempt.end["reason"]), cause)
    if cause is None:
        return None
    return Ending(str(cause["fault"]) if cause["fault"] in SCHEDULER_ENDINGS else FAILED, cause)
