"""The steps of a run at which the loss jumped: those that lt-train noted, and those that stand out of the logged losses.

lt-train looks at every step and names it. A log line is the mean of the steps since the line before, so a line that stands out
means all of them. Steps close together are one spike, of which the first are looked at: the loss stays up after what raised it.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from lt_monitor.runs.attempts import Run

LINES_BEFORE = 20
FEWEST_LINES = 10
# As lt-train's own: six deviations alone would call the ripples of a flat loss a spike.
DEVIATIONS = 6.0
SMALLEST_RISE = 0.1
TO_DEVIATION = 1.4826
ONE_SPIKE_STEPS = 20
MOST_STEPS = 10


class StepRange(NamedTuple):
    """Steps `first` to `last`, counted from 1."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"step {self.first:,}" if self.first == self.last else f"steps {self.first:,} to {self.last:,}"


def find(run: Run) -> list[StepRange]:
    """The spikes of a run, in order."""
    noted = [fault["step"] for fault in run.of_kind("fault") if fault["fault"] == "loss-spike" and fault.get("step")]
    ranges = [StepRange(step, step) for step in sorted(set(noted))]
    seen = _of_lines(run)
    # What a line says as a whole, lt-train may have said of its steps.
    ranges += [line for line in seen if not any(line.first <= step <= line.last for step in noted)]
    return list(_joined(sorted(ranges)))


def _of_lines(run: Run) -> Iterator[StepRange]:
    losses = run.steps.column("loss")
    known = np.flatnonzero(~np.isnan(losses))
    numbers, losses = run.steps.numbers[known], losses[known]
    for index in range(FEWEST_LINES, len(losses)):
        before = losses[max(0, index - LINES_BEFORE) : index]
        before = before[np.isfinite(before)]
        if len(before) < FEWEST_LINES or not stands_out(float(losses[index]), before):
            continue
        # A restart leaves a gap between lines that no step of this line explains.
        interval = int(np.median(np.diff(numbers[max(0, index - FEWEST_LINES) : index + 1])))
        yield StepRange(max(int(numbers[index - 1]), int(numbers[index]) - interval) + 1, int(numbers[index]))


def stands_out(loss: float, others: np.ndarray) -> bool:
    """Whether a loss is far above finite others."""
    return not np.isfinite(loss) or loss > limit(others)


def limit(others: np.ndarray) -> float:
    """The loss above which one stands out of others."""
    median = float(np.median(others))
    deviation = TO_DEVIATION * float(np.median(np.abs(others - median)))
    return median + max(DEVIATIONS * deviation, SMALLEST_RISE * abs(median))


def _joined(ranges: Iterable[StepRange]) -> Iterator[StepRange]:
    current: StepRange | None = None
    end = 0
    for one in ranges:
        if current is None or one.first > end + ONE_SPIKE_STEPS:
            if current is not None:
                yield current
            current = one
        elif one.last - current.first < MOST_STEPS:
            current = StepRange(current.first, max(current.last, one.last))
        end = max(end, one.last)
    if current is not None:
        yield current
