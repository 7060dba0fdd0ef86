"""Runs of one attempt that come from no log."""

from typing import Any

from lt_monitor.events.records import Record
from lt_monitor.events.steps import Steps
from lt_monitor.runs.attempts import Attempt, Run


def steps_of(*records: Record) -> Steps:
    """Records that do not say their step are of steps 1, 2 and so on."""
    return Steps.from_records([{"step": number, **record} for number, record in enumerate(records, 1)])


def run_of(*records: Record, **fields: Any) -> Run:
    """`fields` as of `run_of_columns`."""
    return run_of_columns(steps_of(*records), **fields)


def run_of_columns(steps: Steps, name: str = "a", files: list[str] | None = None, **fields: Any) -> Run:
    """`fields` are those of the attempt."""
    return Run(name, [Attempt(1, steps=steps, **fields)], files or [])
