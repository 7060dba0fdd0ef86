"""nanotron's lines from its pull requests and issues, 2024 and 2025."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from trainer_logs import events_in as events

LOG = Path(__file__).parents[2] / "samples" / "trainers" / "nanotron.log"


def test_a_line_of_2024() -> None:
    assert events(LOG.read_bytes())[0] == {
        "kind": "step",
        "step": 991,
        "total_steps": 1000,
        "step_seconds": 0.045,
        "tokens_per_second": 14200.0,
        "tokens_per_second_per_gpu": 1780.0,
        "global_batch_size": 20,
        "loss": 10.6,
        "learning_rate": 1e-05,
        "tflops_per_gpu": 0.00869,
        "grad_norm": 0.515,
        "memory_bytes": 75_200_000,
        "reserved_memory_bytes": 547_000_000,
        "time": "2024-01-17T13:47:27",
        "metrics": {
            "consumed_tokens": 634_000.0,
            "hardware_tflops_per_gpu": 0.00869,
            "hd_total_memory_tb": 312e9,
            "hd_used_memory_tb": 61.8e9,
            "hd_free_memory_tb": 250e9,
        },
    }


def test_a_line_of_december_2025_has_a_batch_of_tokens_and_no_year() -> None:
    assert events(LOG.read_bytes())[3] == {
        "kind": "step",
        "step": 211364,
        "total_steps": 1500000,
        "step_seconds": 8.79,
        "tokens_per_second": 182_000.0,
        "tokens_per_second_per_gpu": 699.0,
        "grad_norm": 0.112,
        "loss": 2.04,
        "learning_rate": 0.0001,
        "tflops_per_gpu": 15.4,
        "metrics": {"consumed_tokens": 480e9, "global_batch_size": 1_600_000.0},
    }


def test_all_steps_of_the_fixture() -> None:
    found = events(LOG.read_bytes())
    assert [(event["step"], event["loss"], event["step_seconds"]) for event in found] == [
        (991, 10.6, 0.045),
        (992, 10.6, 0.0412),
        (993, 10.6, 0.0394),
        (211364, 2.04, 8.79),
        (211365, 2.06, 8.74),
        (327281, 2.38, 11.5),
        (327282, 2.35, 11.5),
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [("nan", None), ("2.03K", 2030.0), ("1e-05", 1e-05), ("1.4M", 1.4e6), ("85.8G", 85.8e9), ("2.13T", 2.13e12)],
)
def test_suffixes(text: str, value: float | None) -> None:
    line = f"iteration: 5 / 100 | consumed_tokens: 1.28K | time_per_iteration_ms: 20.3 | grad_norm: {text} | lm_loss: 8.35\n"
    (found,) = events(line)
    assert found["grad_norm"] == value


def test_checkpoints_have_begun() -> None:
    """From its format strings: a path ends with the step."""
    assert events(
        "08/31/2024 14:37:32 [WARNING|DP=0|PP=0|TP=0]: Saving checkpoint at checkpoints/10\n"
        "08/31/2024 14:38:32 [INFO|DP=0|PP=0|TP=0]: Loading checkpoint from checkpoints/10:\n"
    ) == [
        {"kind": "checkpoint", "begun": True, "step": 10, "path": "checkpoints/10", "time": "2024-08-31T14:37:32"},
        {"kind": "load", "begun": True, "step": 10, "path": "checkpoints/10", "time": "2024-08-31T14:38:32"},
    ]


def test_summarize(tool: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    (run,) = json.loads(tool("summarize", "--json", str(LOG)).stdout)["runs"]
    assert (run["step"], run["total_steps"], run["loss"], run["restarts"]) == (327282, 378950, 2.35, 0)
