"""MLPerf's log: training losses are steps, counted in steps or in samples."""

import json
from pathlib import Path
from typing import Any

import pytest

from lt_monitor.events.records import Record
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.runs.faults.tail_cause import tail_cause

TIME_MS = 1715111129469


def _entry(key: str, value: Any, **metadata: Any) -> str:
    fields = {
        "namespace": "",
        "time_ms": TIME_MS,
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": metadata,
    }
    return f":::MLLOG {json.dumps(fields)}\n"


def _steps(text: str) -> list[Record]:
    return [record for record in LogParser().parse(text.encode(), 0).records("a.log", "a") if record["kind"] == "step"]


def test_samples_are_divided_by_the_batch_size(tmp_path: Path) -> None:
    losses = "".join(_entry("train_loss", 4.0 - number, samples_count=640 * number) for number in (1, 2, 3))
    text = _entry("global_batch_size", 64) + losses
    steps = _steps(text)
    assert [(step["step"], step["loss"], step["consumed_samples"]) for step in steps] == [
        (10, 3.0, 640),
        (20, 2.0, 1280),
        (30, 1.0, 1920),
    ]
    assert steps[0]["time"] == "2024-05-07T19:45:29.469Z"
    (tmp_path / "a.log").write_text(text)
    assert tail_cause([str(tmp_path / "a.log")]).last_step == 30


@pytest.mark.parametrize("metadata", [{"step_num": 12}, {"step": 12}, {"step": 12, "samples_count": 999}])
def test_a_step_that_is_named(metadata: dict[str, int]) -> None:
    (step,) = _steps(_entry("train_loss", 1.5, **metadata))
    assert (step["step"], step["loss"]) == (12, 1.5)


def test_the_loss_among_tracked_stats() -> None:
    (step,) = _steps(_entry("tracked_stats", {"reduced_train_loss": 1.25, "throughput": 9.0}, step=12))
    assert (step["step"], step["loss"]) == (12, 1.25)


def test_other_entries_are_no_steps() -> None:
    assert _steps(_entry("eval_accuracy", 0.93, samples_count=640) + _entry("train_loss", None) + _entry("run_start", "")) == []
