"""The lines of AWS's FSDP examples, from its guides of 2023 to 2025; checkpoints from the format strings of its source."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from trainer_logs import events_in as events

LOG = Path(__file__).parents[2] / "samples" / "trainers" / "aws_fsdp.log"


def test_steps_of_the_fixture() -> None:
    found = events(LOG.read_bytes())
    assert [event["kind"] for event in found] == ["step"] * 19
    assert [event["step"] for event in found] == [*range(6), 21, *range(90, 98), *range(979, 983)]
    assert found[0] == {
        "kind": "step",
        "step": 0,
        "loss": 11.61653,
        "samples_per_second": 4.88,
        "learning_rate": 0.0001,
        "task": 0,
        "time": "2025-06-17T16:24:52",
    }


def test_speed_in_tflops_and_the_norm_where_they_are() -> None:
    (found,) = [event for event in events(LOG.read_bytes()) if event["step"] == 21]
    assert found == {
        "kind": "step",
        "step": 21,
        "loss": 11.625,
        "samples_per_second": 1.31,
        "tflops_per_gpu": 27.8,
        "learning_rate": 0.000014,
        "grad_norm": 12.4601,
        "time": "2024-06-24T21:07:40",
    }


def test_checkpoints_are_of_the_batch_that_was_last_in_them() -> None:
    """50 steps are behind the checkpoint; the last of them is batch 49."""
    found = events(
        "0: 2025-06-17 16:27:10 I [train.py:103] Batch 49 Loss: 7.10000, Speed: 9.41 samples/sec, lr: 0.000010\n"
        "0: 2025-06-17 16:27:12 I [train.py:118] Batch 49 Validation loss: 7.25\n"
        "0: 2025-06-17 16:27:13 I [checkpoint.py:29] Writing checkpoint to checkpoints/mathstral-7B/mistral-50steps.\n"
        "0: 2025-06-17 16:27:33 I [checkpoint.py:53] Completed checkpoint.\n"
        "0: 2025-06-17 16:29:33 I [checkpoint.py:88] Loading checkpoint from checkpoints/mathstral-7B/mistral-50steps ...\n"
        "0: 2025-06-17 16:29:53 I [checkpoint.py:126] Checkpoint loaded from checkpoints/mathstral-7B/mistral-50steps.\n"
    )
    path = "checkpoints/mathstral-7B/mistral-50steps"
    assert [{field: value for field, value in event.items() if field not in ("time", "task")} for event in found[1:]] == [
        {"kind": "eval", "step": 49, "loss": 7.25, "split": "validation"},
        {"kind": "checkpoint", "step": 49, "path": path, "begun": True},
        {"kind": "checkpoint", "step": 49},
        {"kind": "load", "step": 49, "path": path, "begun": True},
        {"kind": "load", "step": 49, "path": path},
    ]
    assert found[3]["time"] == "2025-06-17T16:27:33"


def test_averages_are_no_steps() -> None:
    assert events("Batch 90 Running Avg Speed: 9.41 samples/sec, Running Avg Model TFLOPS/GPU: 27.80\n") == []


def test_summarize(tool: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    (run,) = json.loads(tool("summarize", "--json", str(LOG)).stdout)["runs"]
    assert (run["step"], run["loss"], run["tflops_per_gpu"]) == (982, 5.45894, 27.8)
