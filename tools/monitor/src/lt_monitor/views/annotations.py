"""Annotations for plots and the report: restarts, faults and NaN losses, each at a step.

Log lines of faults carry no step. A fault is put at the last step that its attempt had logged before it, by the times of the
lines. Without times, the fault is put at the step that earlier events name, or else at the end of its attempt, where most
faults are.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from lt_monitor.events.escaping import printable
from lt_monitor.events.records import Record
from lt_monitor.events.steps import epoch_seconds
from lt_monitor.runs import summary
from lt_monitor.runs.attempts import Attempt, Run
from lt_shared.console import counted

NAN_GROUPS = 200
FAULT_GROUPS = 200
TEXT_CHARACTERS = 160


@dataclasses.dataclass(frozen=True)
class Annotation:
    """`kind` is restart, fault or nan. `until` is the last step that a restart lost, else `step`. `text` is one safe line."""

    kind: str
    step: int
    until: int
    text: str


def annotations_of(run: Run) -> list[Annotation]:
    """All annotations of a run by step."""
    faults = [annotation for attempt in run.attempts for annotation in _faults(attempt)]
    return sorted([*_restarts(run), *faults, *_without_number(run)], key=lambda annotation: annotation.step)


def fault_step(fault: Record, attempt: Attempt) -> int | None:
    """The last step that the attempt had logged when the fault's line was written."""
    if fault.get("step") is not None:
        return int(fault["step"])
    when = epoch_seconds(fault.get("time"))
    timed = np.isfinite(attempt.steps.times)
    if np.isfinite(when) and timed.any():
        before = np.flatnonzero(timed & (attempt.steps.times <= when))
        return int(attempt.steps.numbers[before[-1]]) if len(before) else attempt.resumed_at or 0
    return attempt.last_step if attempt.last_step is not None else attempt.resumed_at


def _restarts(run: Run) -> list[Annotation]:
    restarts = []
    highest = 0
    for attempt in run.attempts:
        step = attempt.resumed_at if attempt.resumed_at is not None else attempt.first_step
        if step is not None and (attempt.number > 1 or attempt.resumed_at):
            again = f", {counted(highest - step, 'step')} repeated" if highest > step else ""
            restarts.append(
                Annotation("restart", step, max(step, highest), f"attempt {attempt.number} resumed from step {step:,}{again}")
            )
        highest = max(highest if step is None else min(highest, step), attempt.last_step or 0)
    return restarts


def _faults(attempt: Attempt) -> list[Annotation]:
    """One annotation per step: the root cause or first fault, and the number of further faults.

    Very many steps share annotations.
    """
    by_step: dict[int, list[Record]] = {}
    for fault in attempt.of_kind("fault"):
        step = fault_step(fault, attempt)
        if fault["severity"] != "info" and step is not None:
            by_step.setdefault(step, []).append(fault)
    groups = np.array_split(sorted(by_step), min(FAULT_GROUPS, len(by_step)) or 1)
    return [
        _fault_annotation(int(steps[0]), [fault for step in steps for fault in by_step[int(step)]])
        for steps in groups
        if len(steps)
    ]


def _fault_annotation(step: int, faults: Sequence[Record]) -> Annotation:
    chosen = next((fault for fault in faults if fault["cause"] == "root"), faults[0])
    more = f" (and {len(faults) - 1:,} more)" if len(faults) > 1 else ""
    message = printable(chosen["message"], TEXT_CHARACTERS)
    return Annotation("fault", step, step, f"{printable(chosen['fault'])}{more}: {message}")


def _without_number(run: Run) -> list[Annotation]:
    """Losses that are not a number. If there are very many, neighbours share an annotation."""
    steps = run.steps
    numbers = steps.numbers[summary.nan_steps(steps) > 0]
    return [_group(part) for part in np.array_split(numbers, min(NAN_GROUPS, len(numbers)) or 1) if len(part)]


def _group(steps: Sequence[int] | np.ndarray) -> Annotation:
    first, last = int(steps[0]), int(steps[-1])
    text = f"loss is not a number at step {first:,}" if first == last else f"losses are not numbers, {first:,} to {last:,}"
    return Annotation("nan", first, first, text)
