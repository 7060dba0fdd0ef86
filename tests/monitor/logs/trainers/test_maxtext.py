"""MaxText's steps, evaluations and checkpoints."""

from typing import Any

import pytest
from trainer_logs import events, summary, values

from lt_monitor.logs.lines import Line
from lt_monitor.logs.trainers import maxtext


def test_steps() -> None:
    steps = events("maxtext", "step")
    assert [step["step"] for step in steps] == [*range(10), 1, 2, 15107, 3000]
    assert values(steps[5]) == {
        "step": 5,
        "step_seconds": 5.668,
        "tflops_per_gpu": 134.909,
        "tokens_per_second_per_gpu": 8671.794,
        "loss": 10.879,
        "metrics": {"total_weights": 196608.0},
    }


def test_the_loss_of_the_language_model_is_the_loss() -> None:
    step = events("maxtext", "step")[11]
    assert (step["loss"], step["metrics"]["total loss"], step["metrics"]["perplexity"]) == (12.98, 12.98, 433463.719)
    line = Line(b"completed step: 1, seconds: 0.5, loss: 3.5, main_model_loss: 3.25, mtp_loss: 0.25", 0)
    found = maxtext.step(line)
    assert found is not None
    assert {field.name: line.text[begin:end] for field, begin, end in found.values if field} == {
        "step": b"1",
        "step_seconds": b"0.5",
        "total loss": b"3.5",
        "loss": b"3.25",
        "mtp_loss": b"0.25",
    }


def test_forks() -> None:
    old, fork = events("maxtext", "step")[12:]
    assert values(old) == {"step": 15107, "step_seconds": 2.167, "tflops_per_gpu": 36.722, "loss": 2.191}
    assert values(fork) == {
        "step": 3000,
        "step_seconds": 1 / 0.641,
        "tflops_per_gpu": 116.163,
        "loss": 2.721263,
        "learning_rate": 27.053e-5,
        "metrics": {"total_weights": 523957.0, "accuracy": 48.162},
    }


def test_evaluation() -> None:
    assert [values(record) for record in events("maxtext", "eval")] == [{"step": 9, "loss": 9.42, "split": "validation"}]


def test_checkpoints() -> None:
    assert [values(record) for record in events("maxtext", "checkpoint")] == [
        {"step": 19, "begun": True},
        {"step": 3000, "begun": True},
        {"step": 3000, "begun": True, "asynchronous": True},
        {"step": 99999, "asynchronous": True},
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Saved a checkpoint at step 19.", {"kind": "checkpoint", "step": 19}),
        ("restoring from this run's directory step 3000", {"kind": "load", "step": 3000, "begun": True}),
    ],
)
def test_lines_of_its_source(text: str, expected: dict[str, Any]) -> None:
    assert maxtext.checkpoint(Line(text.encode(), 0)) == expected


def test_number_of_parameters() -> None:
    (note,) = events("maxtext", "note")
    assert (note["note"], note["fields"]) == ("parameters", {"parameters": 15_933_000_000})


def test_summary(tool: Any) -> None:
    found = summary(tool, "maxtext")
    assert (found["step"], found["loss"]) == (3000, 2.721263)
