"""The steps at which the loss jumped."""

import math

import numpy as np
import pytest
from made_runs import run_of_columns

from lt_monitor.blame import spikes
from lt_monitor.blame.spikes import StepRange
from lt_monitor.events.steps import Steps
from lt_monitor.runs.attempts import Run


def run(losses: dict[int, float], interval: int = 1, noted: tuple[int, ...] = (), lines: int = 100) -> Run:
    """A run of falling losses with some ripple, but for `losses` of some steps."""
    numbers = np.arange(interval, interval * lines + 1, interval)
    rng = np.random.default_rng(0)
    values = 4 + 3 * np.exp(-numbers / 100 / interval) + rng.normal(0, 0.02, len(numbers))
    for step, loss in losses.items():
        values[np.searchsorted(numbers, step)] = loss
    events = [{"kind": "fault", "fault": "loss-spike", "step": step} for step in noted]
    return run_of_columns(Steps(numbers, {"loss": values}, np.full(len(numbers), np.nan)), events=events)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (run({}), []),
        (run({50: 9.0}), [StepRange(50, 50)]),
        (run({50: math.inf}), [StepRange(50, 50)]),
        (run({50: 5.6}), []),
        # Text that repeats itself is easy to learn. What stays down has been learned.
        (run({50: 1.0}), [StepRange(50, 50, is_dip=True)]),
        (run({50: 1.0, 51: 9.0}), [StepRange(50, 50, is_dip=True), StepRange(51, 51)]),
        (run(dict.fromkeys(range(50, 101), 1.0)), []),
        # The first lines are steep, and say nothing.
        (run({3: 20.0}), []),
        # A line is the mean of the steps since the one before.
        (run({500: 9.0}, interval=10), [StepRange(491, 500)]),
        (run({500: 9.0}, interval=10, noted=(497,)), [StepRange(497, 497)]),
        (run({}, noted=(31, 80)), [StepRange(31, 31), StepRange(80, 80)]),
        # The loss stays up: the first steps are looked at.
        (run(dict.fromkeys(range(50, 56), 9.0)), [StepRange(50, 55)]),
        (run({}, noted=tuple(range(40, 70))), [StepRange(40, 49)]),
        (run({30: 9.0, 90: 9.0}), [StepRange(30, 30), StepRange(90, 90)]),
        # The same text comes again and again, and the loss comes back in between.
        (run(dict.fromkeys(range(30, 100, 10), 9.0)), [StepRange(step, step) for step in range(30, 100, 10)]),
        (run({50: 9.0, 51: 8.0, 53: 7.0, 57: 9.0}), [StepRange(50, 53), StepRange(57, 57)]),
    ],
)
def test_find(made: Run, expected: list[StepRange]) -> None:
    assert spikes.find(made) == expected
