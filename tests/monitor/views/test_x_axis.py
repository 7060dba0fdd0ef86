"""Where steps are on an axis of tokens or hours."""

import made_runs
import pytest

from lt_monitor.runs.attempts import Run
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views.x_axis import XAxis, tick_label
from lt_shared.console import BadData

ARGUMENTS = {"seq_length": 1000, "global_batch_size": 8}


def started(*steps: dict, arguments: dict | None = None, begin: float | None = None) -> Run:
    return made_runs.run_of(*steps, events=[{"kind": "start", "arguments": arguments or {}}], begin_time=begin)


def test_steps_are_where_they_are() -> None:
    axis = XAxis.of(started({"step": 10}, {"step": 20}), "step", RunFacts())
    assert axis.at([10, 15, 20]).tolist() == [10, 15, 20]


def test_tokens_are_samples_times_sequence_length() -> None:
    ramped = started({"step": 1, "consumed_samples": 2}, {"step": 3, "consumed_samples": 6}, arguments=ARGUMENTS)
    assert XAxis.of(ramped, "tokens", RunFacts()).at([1, 2, 3]).tolist() == [2000, 4000, 6000]
    counted = started({"step": 1}, {"step": 3}, arguments=ARGUMENTS)
    assert XAxis.of(counted, "tokens", RunFacts()).positions.tolist() == [8000, 24_000]
    given = started({"step": 1, "consumed_samples": 2})
    assert XAxis.of(given, "tokens", RunFacts(seq_length=10)).positions.tolist() == [20]


def test_hours_are_counted_from_the_first_line() -> None:
    timed = started(
        {"step": 1, "time": "2026-01-01T10:30:00Z"}, {"step": 2, "time": "2026-01-01T12:00:00Z"}, {"step": 3}, begin=1767261600.0
    )
    axis = XAxis.of(timed, "hours", RunFacts())
    assert (axis.numbers.tolist(), axis.positions.tolist()) == ([1, 2], [0.5, 2.0])
    without_times = started({"step": 2, "step_seconds": 1800.0}, {"step": 4, "step_seconds": 3600.0})
    assert XAxis.of(without_times, "hours", RunFacts()).positions.tolist() == [1.0, 3.0]


def test_a_clock_that_goes_back_does_not_turn_the_curve() -> None:
    run = started({"step": 1, "time": "2026-01-01T10:00:00Z"}, {"step": 2, "time": "2026-01-01T09:00:00Z"})
    assert XAxis.of(run, "hours", RunFacts()).positions.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("x", "arguments", "message"),
    [
        ("tokens", {}, "the sequence length, so tokens are not known"),
        ("tokens", {"seq_length": 8}, "the batch size, so tokens are not known"),
        ("hours", ARGUMENTS, "no times, so hours are not known"),
    ],
)
def test_what_a_log_does_not_show(x: str, arguments: dict, message: str) -> None:
    with pytest.raises(BadData, match=message):
        XAxis.of(started({"step": 1}, arguments=arguments), x, RunFacts())


def test_tick_labels() -> None:
    assert (tick_label("step", 1_600_000), tick_label("tokens", 2e9), tick_label("hours", 0.25)) == ("1,600,000", "2B", "0.25")
