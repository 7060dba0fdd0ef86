"""Logs that stop among steps: the file's age and the times in the log tell whether the job can still run."""

import datetime
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lt_monitor.runs.faults.advice import Action
from lt_monitor.runs.faults.tail_cause import tail_cause

Tool = Callable[..., subprocess.CompletedProcess[str]]
HOUR = 3600.0
NOW = time.time()
BARS = "".join(f"  1%|          | {number}/1752 [00:{number:02d}<1:22:01,  2.83s/it]\r" for number in range(1, 30))


def _steps(last: float, seconds: float = 8.1) -> str:
    """Megatron's steps, the last at `last`, seconds since 1970."""
    return "".join(
        f" [{datetime.datetime.fromtimestamp(last - seconds * (20 - number)):%Y-%m-%d %H:%M:%S}] iteration {number:8d}/    1000 |"
        f" consumed samples: {number:12d} | elapsed time per iteration (ms): {seconds * 1000:.1f} | global batch size:   256 |"
        f" lm loss: 5.4{number:05d}E+00 | loss scale: 1.0 |\n"
        for number in range(1, 21)
    )


def _log(directory: Path, text: str, age: float) -> str:
    path = directory / "slurm-1.out"
    path.write_text(text)
    os.utime(path, (NOW - age, NOW - age))
    return str(path)


@pytest.mark.parametrize(
    ("text", "age", "has_ended"),
    [
        (_steps(NOW - 5), 5, False),
        (_steps(NOW - HOUR), HOUR, True),
        (_steps(NOW - HOUR, 600), HOUR, False),
        # Another zone's clock, and a copy of an old log.
        (_steps(NOW - HOUR + 9 * HOUR), HOUR, True),
        (_steps(NOW - 200.3 * HOUR), HOUR, False),
        (BARS, HOUR, False),
        (BARS, 7 * HOUR, True),
        ("building the data set\n", 100 * HOUR, False),
    ],
    ids=["running", "silent", "slow", "zone", "copy", "bars", "silent bars", "no steps"],
)
def test_the_age_of_the_file_tells_whether_the_job_has_ended(text: str, age: float, has_ended: bool, tmp_path: Path) -> None:
    cause = tail_cause([_log(tmp_path, text, age)])
    assert (cause.fault, cause.action) == (("unknown", Action.UNKNOWN) if has_ended else (None, Action.NONE))
    assert tail_cause([_log(tmp_path, text, age)], is_ended=True).action is Action.UNKNOWN


def test_what_is_said_of_a_log_without_an_end(tmp_path: Path) -> None:
    running = tail_cause([_log(tmp_path, _steps(NOW - 60), 60)])
    assert running.sentence().startswith(f"no failure, and no end yet (last time {_iso(NOW - 60)}, unchanged for ")
    silent = tail_cause([_log(tmp_path, _steps(NOW - 5 * HOUR), 5 * HOUR)])
    assert silent.message == f"the log stops without a word (last time {_iso(NOW - 5 * HOUR)}, unchanged for 5 h)"
    assert (silent.line, silent.last_step) == (20, 20)
    assert silent.text is not None and "iteration       20/" in silent.text


def _iso(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds):%Y-%m-%dT%H:%M:%S}"


def test_a_job_is_silent_as_long_as_its_last_rank(tmp_path: Path) -> None:
    logs = []
    for rank, age in enumerate((5 * HOUR, 5.0)):
        (tmp_path / str(rank)).mkdir()
        logs.append(_log(tmp_path / str(rank), _steps(NOW - age), age))
    assert tail_cause(logs).action is Action.NONE
    assert tail_cause(logs[:1]).action is Action.UNKNOWN


def test_a_proper_end_needs_no_age(tool: Tool, tmp_path: Path) -> None:
    log = _log(tmp_path, _steps(NOW - HOUR) + "Training is done\n", HOUR)
    assert tool("tail-cause", "--ended", log).returncode == 0
    result = tool("tail-cause", "--ended", _log(tmp_path, _steps(NOW), 0))
    assert (result.returncode, result.stdout.partition(":")[0]) == (1, "unknown")
