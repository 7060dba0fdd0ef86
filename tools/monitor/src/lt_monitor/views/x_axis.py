"""The unit of a picture's horizontal axis: steps, tokens, or hours since the run began.

Steps compare runs with equal batch sizes, tokens runs with different batch sizes, hours runs on different machines.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from lt_monitor.events.escaping import printable
from lt_monitor.runs import speed
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.speed import RunFacts, Sizes
from lt_monitor.views.tick_labels import compact
from lt_shared.console import BadData


@dataclasses.dataclass(frozen=True)
class XAxis:
    """The x positions of one run: `positions` (float64, ascending) of the steps `numbers`, both of shape (points,)."""

    numbers: np.ndarray
    positions: np.ndarray

    @classmethod
    def of(cls, run: Run, x: str, run_facts: RunFacts) -> "XAxis":
        """`x` is one of X_AXES. Raises BadData when the log does not show the tokens or the times."""
        numbers = run.steps.numbers
        if x == "step":
            return cls(numbers, numbers.astype(np.float64))
        positions = _tokens(run, run_facts) if x == "tokens" else _hours(run)
        has_position = np.isfinite(positions)
        return cls(numbers[has_position], np.maximum.accumulate(positions[has_position]))

    def at(self, steps: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the positions of `steps`, shape (points,), interpolated for steps that were not logged."""
        return np.asarray(np.interp(np.asarray(steps, np.float64), self.numbers, self.positions))


def tick_label(x: str, position: float) -> str:
    return compact(position) if x == "tokens" else f"{position:,.0f}" if x == "step" else f"{position:,.6g}"


def _tokens(run: Run, run_facts: RunFacts) -> np.ndarray:
    sizes = Sizes.of(run.arguments, run_facts)
    steps = run.steps
    samples = steps.column("consumed_samples")
    if sizes.global_batch_size is not None:
        samples = np.where(np.isfinite(samples), samples, steps.numbers * float(sizes.global_batch_size))
    if sizes.seq_length is None or not np.isfinite(samples).any():
        missing = "the sequence length" if sizes.seq_length is None else "the batch size"
        remedy = "give it with --seq-length" if sizes.seq_length is None else "leave out --x tokens"
        raise BadData(f"{printable(run.name)}: the log does not show {missing}, so tokens are not known", remedy)
    return np.where(np.isfinite(samples), samples, np.nan) * sizes.seq_length


def _hours(run: Run) -> np.ndarray:
    """By the times of the lines, pauses between attempts included; without times, the steps' own times added up."""
    steps = run.steps
    has_time = np.isfinite(steps.times)
    if has_time.any():
        begin = run.attempts[0].begin_time
        return (steps.times - (begin if begin is not None else steps.times[has_time][0])) / 3600
    seconds = speed.step_seconds(steps)
    if not np.isfinite(seconds).any():
        raise BadData(f"{printable(run.name)}: the log shows no times, so hours are not known", "leave out --x hours")
    return np.cumsum(np.nan_to_num(seconds, posinf=0.0) * np.diff(steps.numbers, prepend=0)) / 3600
