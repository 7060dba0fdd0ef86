"""levanter's progress bar as it logs it, and what its JSON tracker prints."""

from typing import Any

import pytest
from trainer_logs import events, summary, values

from lt_monitor.logs.fields import read_values
from lt_monitor.logs.lines import Line
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.logs.trainers import levanter


def test_progress_bar() -> None:
    assert [values(step) for step in events("levanter", "step")] == [
        {"step": 1, "total_steps": 18, "step_seconds": 483.9},
        {"step": 11, "total_steps": 18, "step_seconds": 34.5, "loss": 15.5},
        {"step": 19, "total_steps": 70, "step_seconds": 76.8},
    ]
    (checkpoint,) = events("levanter", "checkpoint")
    assert values(checkpoint) == {"step": 18, "begun": True}


def test_thousands_of_steps() -> None:
    text = b"Progress on:train 1.20kit/10.0kit rate:2.1it/s remaining:1:09:50 elapsed:11:02 postfix:loss=3.21"
    found = levanter.step(Line(text, 0))
    assert found is not None
    assert read_values(text, found.values) == {"step": 1200, "total_steps": 10000, "step_seconds": 1 / 2.1, "loss": 3.21}


def test_other_bars_are_no_steps() -> None:
    assert levanter.step(Line(b"Progress on:eval 1.00it/18.0it rate:483.9s/it", 0)) is None


def test_json_tracker() -> None:
    log = (
        b'{"tracker": "json_logger", "event": "log", "step": 12, "metrics": {"train/loss": 3.25, "throughput/mfu": 45.5, '
        b'"throughput/duration": 0.5, "throughput/tokens_per_second": 1000.0, "optim/learning_rate": 0.001}}\n'
        b'{"tracker": "json_logger", "event": "log", "step": 13, "metrics": {"hooks/time": 1.0}}\n'
        b'{"tracker": "json_logger", "event": "log", "step": 14, "metrics": [\n'
    )
    (step,) = LogParser().parse(log, 0).records("log", "log")
    assert values(step) == {
        "step": 12,
        "loss": 3.25,
        "mfu": 0.455,
        "step_seconds": 0.5,
        "tokens_per_second": 1000.0,
        "learning_rate": 0.001,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("INFO:levanter.callbacks:eval loss: 3.456", {"loss": 3.456, "split": "validation"}),
        ("2025-05-01 10:00:00 - 0 - levanter.eval - INFO :: c4/en validation loss: 3.25", {"loss": 3.25, "split": "c4/en"}),
        ("2025-05-01 10:00:00 - 0 - levanter.eval - INFO :: validation loss: 3.25", {"loss": 3.25, "split": "validation"}),
    ],
)
def test_evaluations(text: str, expected: dict[str, Any]) -> None:
    assert levanter.evaluation(Line(text.encode(), 0)) == {"kind": "eval", **expected}
    assert levanter.evaluation(Line(text.replace("levanter", "other").encode(), 0)) is None


def test_summary(tool: Any) -> None:
    found = summary(tool, "levanter")
    assert (found["step"], found["total_steps"], found["loss"], found["step_seconds"]) == (19, 70, 15.5, 76.8)
