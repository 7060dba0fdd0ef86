"""nanoGPT, and what is derived from it: nanochat, llm.c, modded-nanogpt, llama2.c."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from trainer_logs import events_in as events

from lt_monitor.events.records import Record

TRAINERS = Path(__file__).parents[2] / "samples" / "trainers"


def log_of(name: str) -> list[Record]:
    return events((TRAINERS / f"{name}.log").read_bytes())


def test_nanogpt() -> None:
    found = log_of("nanogpt")
    assert [(event["step"], event["loss"]) for event in found if event["kind"] == "step"] == [
        *((490, 5.7543), (500, 6.0091), (510, 5.2391)),
        *((340, 5.4983), (350, 5.4702), (360, 5.0448)),
        *((1631, 4.0863), (1632, 3.7441)),
        *((2980, 3.8993), (2990, 3.8853), (3000, 4.249), (3010, None), (3020, None)),
    ]
    assert found[0] == {
        "kind": "step",
        "step": 490,
        "loss": 5.7543,
        "learning_rate": 4.9e-05,
        "step_seconds": 8.06078,
        "mfu": 0.0021,
    }
    assert found[-7] == {
        "kind": "step",
        "step": 2980,
        "loss": 3.8993,
        "step_seconds": 1.09918,
        "mfu": 0.1534,
        "time": "2023-03-22T09:31:45",
    }
    assert [event for event in found if event["kind"] != "step"] == [
        {"kind": "eval", "step": 500, "loss": 5.9544, "split": "validation", "train_loss": 5.7373},
        {"kind": "checkpoint", "begun": True, "step": 490, "path": "out"},
        {
            "kind": "eval",
            "step": 3000,
            "loss": 4.0427,
            "split": "validation",
            "train_loss": 4.039,
            "time": "2023-03-22T09:32:32",
        },
        {"kind": "checkpoint", "begun": True, "step": 2990, "path": "out"},
    ]


def test_an_mfu_that_is_not_known_is_left_out() -> None:
    """nanoGPT prints -100% for its first five lines, llm.c always on a GPU that it does not know."""
    (found,) = events("iter 0: loss 10.9886, time 37043.88ms, mfu -100.00%\n")
    assert found == {"kind": "step", "step": 0, "loss": 10.9886, "step_seconds": 37043.88 / 1000}
    assert all("mfu" not in event for event in log_of("llmc"))


def test_nanochat() -> None:
    found = log_of("nanochat")
    assert [(event["step"], event["loss"]) for event in found] == [
        (1, 1.874766),
        (2, 2.581178),
        (3, 2.784387),
        (4, None),
        (5, None),
    ]
    assert found[0] == {
        "kind": "step",
        "step": 1,
        "loss": 1.874766,
        "step_seconds": 1.30803,
        "tokens_per_second": 12525.0,
        "mfu": 0.0,
        "epoch": 1,
    }


def test_nanochat_with_a_total_and_an_mfu_with_its_sign() -> None:
    """The scripts of pretraining, and what overwrites one line of the terminal with its steps."""
    (found,) = events(
        "step 00499/182414 (0.27%) | loss: 6.397844 | lrm: 1.00 | dt: 3830.24ms | tok/sec: 8,555 | bf16_mfu: 4.03\n"
    )
    assert (found["step"], found["total_steps"], found["mfu"]) == (499, 182414, 0.0403)
    (found,) = events(
        "step 00005 (17.5%) | loss: 8.250752 | lrm: 1.00 | dt: 8656ms  | tok/sec: 236 | mfu: 26.4% | epoch: 1 | remaining: 90s\n"
    )
    assert (found["step"], found["step_seconds"], found["tokens_per_second"], found["mfu"]) == (5, 8.656, 236.0, 0.264)


def test_bits_per_byte_are_no_loss() -> None:
    assert events("Step 00250 | Validation bpb: 0.853211\n") == []
    assert events("Step 00100 | Validation loss: 1.025000\n") == [
        {"kind": "eval", "step": 100, "loss": 1.025, "split": "validation"}
    ]


def test_llmc() -> None:
    found = log_of("llmc")
    assert [(event["step"], event["loss"]) for event in found] == [
        *((0, 5.356189), (1, 4.301069), (2, 4.623322), (3, 4.60047), (39, 3.970751)),
        *((61, 3.208939), (62, 3.464926), (63, 3.402215)),
    ]
    assert found[0] == {"kind": "step", "step": 0, "loss": 5.356189, "step_seconds": 1.452121}
    assert found[-1] == {
        "kind": "step",
        "step": 63,
        "total_steps": 74,
        "loss": 3.402215,
        "grad_norm": 1.3542,
        "learning_rate": 0.0003,
        "step_seconds": 0.04458,
        "tokens_per_second": 91886.0,
    }


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (
            "step 19559/19560 | loss 3.314194 (+0.19z)| norm 0.2776 (+3.74z)| lr 1.79e-11 | 4339.91 ms | 31.1% bf16 MFU"
            " | 124285 tok/s",
            {
                "grad_norm": 0.2776,
                "learning_rate": 1.79e-11,
                "step_seconds": 4.33991,
                "mfu": 0.311,
                "tokens_per_second": 124285.0,
            },
        ),
        (
            "step 19559/19560 | train loss 3.314194 | norm 0.2776 | lr 1.00e-04 | (240.51 ms | 17029 tok/s)",
            {"grad_norm": 0.2776, "learning_rate": 1e-4, "step_seconds": 0.24051, "tokens_per_second": 17029.0},
        ),
        (
            "step 19559/19560: train loss 3.314194 (acc 3.314194) (240.512305 ms, 17029 tok/s)",
            {"step_seconds": 0.240512305, "tokens_per_second": 17029.0},
        ),
    ],
)
def test_llmc_through_the_years(line: str, fields: Record) -> None:
    assert events(line + "\n") == [{"kind": "step", "step": 19559, "total_steps": 19560, "loss": 3.314194, **fields}]


def test_llmc_checkpoint() -> None:
    assert events("Writing checkpoint at step 5000\n") == [{"kind": "checkpoint", "begun": True, "step": 5000}]


def test_modded_nanogpt() -> None:
    found = log_of("modded_nanogpt")
    steps = [event for event in found if event["kind"] == "step"]
    assert [event["step"] for event in steps] == [*range(1, 13), *range(1, 13)]
    assert steps[0] == {"kind": "step", "step": 1, "total_steps": 6200, "loss": 10.9184, "step_seconds": None}
    assert steps[12] == {"kind": "step", "step": 1, "total_steps": 1670, "step_seconds": 0.47296}
    assert [(event["step"], event["loss"]) for event in found if event["kind"] == "eval"] == [
        *((0, 10.9264), (6200, 3.2785)),
        *((0, 10.8258), (1670, 3.2755)),
        *((0, 10.82584), (125, 4.66393), (250, 4.1244), (375, 3.93798)),
    ]


@pytest.mark.parametrize(
    ("name", "step", "loss"),
    [("nanogpt", 3020, 4.249), ("nanochat", 5, 2.784387), ("llmc", 63, 3.402215), ("modded_nanogpt", 12, None)],
)
def test_summarize(tool: Callable[..., subprocess.CompletedProcess[str]], name: str, step: int, loss: float | None) -> None:
    """The loss is the last that is a number."""
    (run,) = json.loads(tool("summarize", "--json", str(TRAINERS / f"{name}.log")).stdout)["runs"]
    assert (run["step"], run["loss"]) == (step, loss)
