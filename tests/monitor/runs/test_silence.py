"""How long a run may write nothing before it counts as dead."""

import os
from pathlib import Path

import pytest
from made_runs import run_of

from lt_monitor.alerts.thresholds import DEFAULTS
from lt_monitor.runs import silence
from lt_monitor.runs.silence import Silence


def of_steps(*steps: dict, updated: float | None = None, files: list[str] | None = None) -> Silence:
    return Silence.of(run_of(*steps, files=files, end_time=updated))


@pytest.mark.parametrize(("step_seconds", "limit"), [(60.0, 600), (0.1, 300), (None, 300)])
def test_the_limit_is_ten_steps_but_no_less_than_five_minutes(step_seconds: float | None, limit: float) -> None:
    one = of_steps({"step": 1, "step_seconds": step_seconds}, {"step": 2, "step_seconds": step_seconds}, updated=1000.0)
    assert (one.is_too_long(1000 + limit - 1), one.is_too_long(1000 + limit + 1)) == (False, True)
    assert one.seconds(1060) == 60
    assert one.seconds(900) == 0


def test_lines_that_are_rare_may_be_rare() -> None:
    """A log with a line every 100 steps: the time between two lines, not that of a step, is usual."""
    lines = [{"step": 100 * line, "step_seconds": 6.0, "time": f"2026-01-01T0{line}:00:00Z"} for line in range(1, 5)]
    assert of_steps(*lines).limit_seconds == 36_000


def test_a_log_without_times_was_written_when_its_file_changed(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.touch()
    os.utime(log, (5000, 5000))
    one = of_steps({"step": 1}, files=[str(log)])
    assert (one.updated, one.is_too_long(5200), one.is_too_long(5400)) == (5000, False, True)


def test_without_any_time_nothing_is_silent() -> None:
    one = of_steps({"step": 1}, files=["-"])
    assert (one.updated, one.seconds(1e12), one.is_too_long(1e12)) == (None, None, False)


def test_alert_goes_by_the_same_numbers() -> None:
    hang = DEFAULTS["hang"]
    assert (hang["minimum_seconds"], hang["step_factor"]) == (silence.MINIMUM_SECONDS, silence.STEP_FACTOR)
