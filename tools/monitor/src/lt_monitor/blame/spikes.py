"""Find the steps at which the loss jumped: steps that lt-train noted, and outliers among the logged losses.

lt-train checks every step and names the step. A log line is the mean of the steps since the line before, so an outlier means
all these steps. Neighbouring steps are one spike, and only its first steps are examined, because the loss stays up after bad
samples. If the loss has come back between two steps, different samples raised them. Repetitive text may lower the loss of a
step: a dip.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from lt_monitor.runs.attempts import Run
from lt_shared.data.sample_order.loss_level import MOST_IN_A_ROW, LossLevel

LINES_BEFORE = 20
FEWEST_LINES = 10
ONE_SPIKE_STEPS = 3
MOST_STEPS = 10


class StepRange(NamedTuple):
    """Steps `first` to `last`, counted from 1; `is_dip` when the loss was down."""

    first: int
    last: int
    is_dip: bool = False

    def __str__(self) -> str:
        return f"step {self.first:,}" if self.first == self.last else f"steps {self.first:,} to {self.last:,}"


def find(run: Run) -> list[StepRange]:
    """The spikes of a run, in order."""
    noted = [fault["step"] for fault in run.of_kind("fault") if fault["fault"] == "loss-spike" and fault.get("step")]
    ranges = [StepRange(step, step) for step in sorted(set(noted))]
    line_ranges = _of_lines(run)
    # Skip a line if lt-train has noted one of its steps already.
    ranges += [line for line in line_ranges if not any(line.first <= step <= line.last for step in noted)]
    return list(_joined(sorted(ranges)))


def _of_lines(run: Run) -> Iterator[StepRange]:
    losses = run.steps.column("loss")
    with_loss = np.flatnonzero(~np.isnan(losses))
    numbers, losses = run.steps.numbers[with_loss], losses[with_loss]
    level = LossLevel(LINES_BEFORE, FEWEST_LINES)
    for side, lines in itertools.groupby(enumerate(map(level.compare, losses.tolist())), lambda line: line[1]):
        indexes = [index for index, _ in lines]
        # A loss that falls and stays down has been learned.
        if side == 0 or (side < 0 and len(indexes) == MOST_IN_A_ROW):
            continue
        for index in indexes:
            # A restart leaves a gap between lines that no step of this line explains.
            interval = int(np.median(np.diff(numbers[max(0, index - FEWEST_LINES) : index + 1])))
            yield StepRange(max(int(numbers[index - 1]), int(numbers[index]) - interval) + 1, int(numbers[index]), side < 0)


def _joined(ranges: Iterable[StepRange]) -> Iterator[StepRange]:
    current: StepRange | None = None
    end = 0
    for one in ranges:
        if current is None or one.first > end + ONE_SPIKE_STEPS or one.is_dip != current.is_dip:
            if current is not None:
                yield current
            current = one
        elif one.last - current.first < MOST_STEPS:
            current = current._replace(last=max(current.last, one.last))
        end = max(end, one.last)
    if current is not None:
        yield current
