"""OLMo's steps of many lines, and the same of OLMo-core."""

from typing import Any

import pytest
from trainer_logs import events, summary, values

from lt_monitor.logs.lines import Line
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.logs.trainers import olmo

OLMO_CORE = b"""\
2025-02-01 10:00:00.123\thost-1:0\tolmo_core.train.callbacks.console_logger:70\tINFO\t[step=99/2000,epoch=0,eta=5h11m]
2025-02-01 10:00:09.123\thost-1:0\tolmo_core.train.callbacks.console_logger:70\tINFO\t[step=100/2000,epoch=0,eta=5h11m]
    optim/LR=4.0E-4
    optim/total grad norm=0.7182
    system/GPU active mem (GiB)=40.5
    throughput/device/BPS=0.1064
    throughput/device/MFU=41.5
    throughput/device/TPS=27,100
    throughput/total tokens=4.2M
    train/CE loss=6.2341
    train/masked=yes
2025-02-01 10:01:00.000\thost-1:0\tolmo_core.train.callbacks.evaluator_callback:90\tINFO\tFinished evaluation
    c4_en-validation/CE loss=6.1022
    c4_en-validation/PPL=446.8
2025-02-01 10:02:00.000\thost-1:0\tolmo_core.train.checkpointer:300\tINFO\tSaving checkpoint for step 100 to '/x/step100'...
2025-02-01 10:02:09.000\thost-1:0\tolmo_core.train.callbacks.checkpointer:300\tINFO\tCheckpoint for step 100 saved successfully
2025-02-01 10:03:00.000\thost-1:0\tolmo_core.train.trainer:800\tINFO\tTraining complete
"""


def test_olmo() -> None:
    first, second, _, last = events("olmo", "step")
    assert values(first) == {
        "time": "2024-04-17T09:42:26",
        "step": 1,
        "total_steps": 739328,
        "loss": 11.25,
        "memory_bytes": 42_133_000_000,
        "metrics": {"train/Perplexity": 76631.0, "throughput/total_tokens": 4194304.0},
    }
    assert (second["loss"], second["tokens_per_second_per_gpu"], second["step_seconds"]) == (10.73, 45538.0, 1 / 0.0869)
    assert (last["step"], last["loss"], last["tokens_per_second_per_gpu"]) == (75, 7.417, 9407.0)


def test_a_rate_of_two_digits_is_no_time_of_a_step() -> None:
    """0.0022 batches a second are 444 to 465 seconds."""
    assert "step_seconds" not in events("olmo", "step")[-1]


def test_lines_without_their_head_belong_to_no_step() -> None:
    found = [(step["step"], step["epoch"], step["loss"], step["grad_norm"]) for step in events("olmo_epochs", "step")]
    assert found == [
        (1, 0, 12.18, 231.7),
        (2, 0, 1.7872662283480167e-06, 0.0002),
        (3, 0, 0.0, 7.725906669975302e-08),
    ]
    assert [step.get("memory_bytes") for step in events("olmo_epochs", "step")] == [46_911_000_000, 53_695_000_000, None]


def test_olmo_core() -> None:
    """As its source prints them; a step that has no metrics has one line."""
    records = [values(record) | {"kind": record["kind"]} for record in LogParser().parse(OLMO_CORE, 0).records("log", "log")]
    assert records == [
        {"kind": "step", "time": "2025-02-01T10:00:00.123", "step": 99, "total_steps": 2000, "epoch": 0},
        {
            "kind": "step",
            "time": "2025-02-01T10:00:09.123",
            "step": 100,
            "total_steps": 2000,
            "epoch": 0,
            "learning_rate": 4e-4,
            "grad_norm": 0.7182,
            "memory_bytes": round(40.5 * 2**30),
            "step_seconds": 1 / 0.1064,
            "mfu": 0.415,
            "tokens_per_second_per_gpu": 27100.0,
            "loss": 6.2341,
            "metrics": {"throughput/total tokens": 4.2e6},
        },
        {"kind": "eval", "loss": 6.1022, "split": "c4_en-validation", "step": 100},
        {"kind": "checkpoint", "time": "2025-02-01T10:02:00.000", "step": 100, "path": "/x/step100", "begun": True},
        {"kind": "checkpoint", "time": "2025-02-01T10:02:09.000", "step": 100},
        {"kind": "end", "time": "2025-02-01T10:03:00.000", "reason": "completed", "step": 100},
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Checkpoint for step 1,000 saved successfully", {"kind": "checkpoint", "step": 1000}),
        (
            "INFO\tCheckpoint saved to /x/step1000-unsharded",
            {"kind": "checkpoint", "step": 1000, "path": "/x/step1000-unsharded"},
        ),
        ("INFO\tLoading checkpoint from '/x/step200'...", {"kind": "load", "step": 200, "path": "/x/step200", "begun": True}),
    ],
)
def test_checkpoints(text: str, expected: dict[str, Any]) -> None:
    assert olmo.checkpoint(Line(text.encode(), 0)) == expected


def test_the_loss_of_training_is_no_evaluation() -> None:
    assert olmo.evaluation(Line(b"    train/CrossEntropyLoss=7.6", 0)) is None
    found = olmo.evaluation(Line(b"    eval/pile/CrossEntropyLoss=3.1", 0))
    assert found == {"kind": "eval", "loss": 3.1, "split": "pile"}


def test_summary(tool: Any) -> None:
    found = summary(tool, "olmo")
    assert (found["step"], found["total_steps"], found["loss"]) == (75, 739328, 7.417)
    assert summary(tool, "olmo_epochs")["step"] == 3
