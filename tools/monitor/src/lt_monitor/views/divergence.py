"""`lt-monitor diff`: whether two runs have the same values at the same steps. A check after a conversion or an upgrade.

Values are compared where both logs have the step: |a - b| <= tolerance * max(|a|, |b|). Runs diverge at the first step where a
value is further away, or is a number in one log only. A tolerance of 0 requires the same digits. How many steps differ matters
less than where they begin to: after that the runs train on different weights.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from lt_monitor.events.steps import Steps
from lt_monitor.runs import run_loader
from lt_monitor.runs.attempts import Run
from lt_shared.console import BadData

VALIDATION_LOSS = "validation_loss"


@dataclasses.dataclass(frozen=True)
class Difference:
    """One field of two runs. `steps` were compared; they part at `first_step`, None when they agree.

    `largest` is the largest relative difference of finite values (0 to 2), at step `largest_at`; `a` and `b` are the values
    at `first_step`, or else at `largest_at`, None where they are no numbers.
    """

    field: str
    steps: int
    parting_steps: int
    first_step: int | None
    largest: float
    largest_at: int
    a: float | None
    b: float | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    a: str
    b: str
    tolerance: float
    differences: list[Difference]

    @property
    def agree(self) -> bool:
        return all(difference.first_step is None for difference in self.differences)

    def to_record(self) -> dict[str, Any]:
        head = {"v": 1, "kind": "diff", "a": self.a, "b": self.b, "tolerance": self.tolerance, "agree": self.agree}
        return {**head, "fields": [dataclasses.asdict(difference) for difference in self.differences]}

    def lines(self) -> list[str]:
        """For people: a line for each field."""
        return [_line(difference) for difference in self.differences]


def compare(a: str, b: str, fields: Sequence[str], tolerance: float) -> Comparison:
    """Compare the runs in two logs. Raises BadData when a log holds several runs, or when no step has the field in both."""
    one, other = _only_run(a), _only_run(b)
    differences = [_difference(field, _curve(one, field), _curve(other, field), tolerance) for field in fields]
    return Comparison(a, b, tolerance, differences)


def _only_run(pattern: str) -> Run:
    runs = run_loader.join_by_checkpoints(run_loader.read([pattern]))
    if len(runs) > 1:
        raise BadData(f"{pattern}: {len(runs)} runs: {', '.join(run.name for run in runs)}", "name the log of one run")
    return runs[0]


def _curve(run: Run, field: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values where the run has the field; infinite where that is no number."""
    steps = run.steps
    if field == VALIDATION_LOSS:
        steps = Steps.from_records([{"step": event["step"], VALIDATION_LOSS: event["loss"]} for event in run.evaluations])
    values = steps.column(field)
    has_value = ~np.isnan(values)
    return steps.numbers[has_value], values[has_value]


def _difference(
    field: str, one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray], tolerance: float
) -> Difference:
    numbers, of_one, of_other = np.intersect1d(one[0], other[0], return_indices=True)
    if not len(numbers):
        hint = "the logs must have steps in common, printed at the same interval"
        raise BadData(f"no step has {field} in both logs", hint)
    a, b = one[1][of_one], other[1][of_other]
    finite = np.isfinite(a) & np.isfinite(b)
    finite_a, finite_b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
    size = np.maximum(np.abs(finite_a), np.abs(finite_b))
    relative = np.divide(np.abs(finite_a - finite_b), size, where=size > 0, out=np.zeros(len(numbers)))
    parts = (relative > tolerance) | (np.isfinite(a) != np.isfinite(b))
    largest = int(relative.argmax())
    first = int(parts.argmax()) if parts.any() else None
    shown = largest if first is None else first
    return Difference(
        field=field,
        steps=len(numbers),
        parting_steps=int(parts.sum()),
        first_step=None if first is None else int(numbers[first]),
        largest=float(relative[largest]),
        largest_at=int(numbers[largest]),
        a=float(a[shown]) if np.isfinite(a[shown]) else None,
        b=float(b[shown]) if np.isfinite(b[shown]) else None,
    )


def _line(difference: Difference) -> str:
    largest = f"largest difference {difference.largest:.3%} at step {difference.largest_at:,}"
    if difference.first_step is None:
        return f"{difference.field}: {difference.steps:,} steps agree, {largest}"
    values = " and ".join("no number" if value is None else f"{value:.6g}" for value in (difference.a, difference.b))
    return (
        f"{difference.field}: {difference.parting_steps:,} of {difference.steps:,} steps differ, the first is "
        f"{difference.first_step:,} ({values}), {largest}"
    )
