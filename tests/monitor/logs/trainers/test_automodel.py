"""NeMo Automodel's lines as its guides and pull requests show them."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from trainer_logs import events_in as events

LOG = Path(__file__).parents[2] / "samples" / "trainers" / "automodel.log"
GIB = 2**30


def test_the_first_releases() -> None:
    """Their tokens per second are of one rank, and the line does not say so: no figure of all ranks, nor of one."""
    found = events(LOG.read_bytes().split(b"2026-08-10", 1)[0])
    steps = [event for event in found if event["kind"] == "step"]
    assert [step["step"] for step in steps] == [4, 8, 12, 16, 20]
    assert steps[0] == {
        "kind": "step",
        "step": 4,
        "epoch": 0,
        "loss": 1.5514,
        "grad_norm": 102.0,
        "memory_bytes": round(11.66 * GIB),
        "metrics": {"tps": 6924.5},
    }
    assert [event for event in found if event["kind"] != "step"] == [
        {"kind": "checkpoint", "begun": True, "step": 10, "path": "checkpoints/epoch_0_step_10"},
        {"kind": "checkpoint", "begun": True, "step": 20, "path": "checkpoints/epoch_0_step_20"},
        {"kind": "eval", "step": 20, "loss": 0.2469, "split": "validation"},
    ]


def test_all_steps_and_validations_of_the_fixture() -> None:
    found = events(LOG.read_bytes())
    assert [event["step"] for event in found if event["kind"] == "step"] == [
        *(4, 8, 12, 16, 20),
        *(13, 14, 15, 16, 17, 18),
        *(0, 6, 9, 10),
        *(0, 10, 20, 50, 100, 200, 300),
    ]
    assert [(event["step"], event["loss"]) for event in found if event["kind"] == "eval"] == [
        (20, 0.2469),
        (99, 0.0225),
        (199, 0.0183),
        (299, 0.0192),
    ]


@pytest.mark.parametrize(
    ("line", "speed"),
    [
        ("step 13 | epoch 0 | loss 0.6407 | lr 1.00e-05 | mem 31.55 GiB | tps 6574.51(821.81/gpu)", (6574.51, 821.81)),
        (
            "step 10 | epoch 0 | loss 1.2296 | lr 8.19e-06 | mem 36.24 GiB | tps 830.26/gpu  | num_label_tokens 46638",
            (None, 830.26),
        ),
        ("step   10 | loss 0.5489 | grad_norm  26.19 | lr 2.98e-06 | mem 40.36 GiB | tps/gpu 425", (None, 425.0)),
        (
            "step 9 | epoch 0 | loss 1.1 | grad_norm 1.0 | lr 1.00e-05 | mem 1.00 GiB | tps 99.50 | num_label_tokens 7",
            (99.5, None),
        ),
    ],
)
def test_tokens_per_second_of_all_ranks_and_of_one(line: str, speed: tuple[float | None, float | None]) -> None:
    (found,) = events(line + "\n")
    assert (found.get("tokens_per_second"), found.get("tokens_per_second_per_gpu")) == speed


def test_a_whole_line_of_2026() -> None:
    line = LOG.read_text().splitlines()[14]
    assert events(line + "\n") == [
        {
            "kind": "step",
            "step": 13,
            "epoch": 0,
            "loss": 0.6407,
            "grad_norm": 1.1754,
            "learning_rate": 1e-05,
            "memory_bytes": round(31.55 * GIB),
            "tokens_per_second": 6574.51,
            "tokens_per_second_per_gpu": 821.81,
            "metrics": {"num_label_tokens": 26779.0},
            "time": "2026-08-10T15:48:59",
        }
    ]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('[val] name "default" | step 20 | epoch 0 | loss 0.2469 | lr 1.00e-05 | num_label_tokens 4707', None),
        ('[val] name "wiki" | step 20 | epoch 0 | loss 0.2469 | lr 1.00e-05 | num_label_tokens 4707', "wiki"),
        (
            "[val] wiki | step 20 | epoch 0 | loss 0.2469 | ce_loss 0.2 | kd_loss 0.3 | lr 1.00e-05 | num_label_tokens 4707",
            "wiki",
        ),
        ("step 20 | epoch 0 | val_loss 0.2469 | val_acc1 0.5000 | val_mrr 0.6000", None),
    ],
)
def test_validation_as_the_recipes_print_it(line: str, name: str | None) -> None:
    """Made from the format strings of NVIDIA-NeMo/Automodel:nemo_automodel/recipes; a step of training it is not."""
    expected = {"kind": "eval", "step": 20, "loss": 0.2469, "split": "validation"}
    assert events(line + "\n") == [expected if name is None else {**expected, "dataset": name}]


def test_loading_names_the_step_in_its_path() -> None:
    assert events("Loading checkpoint from checkpoints/epoch_0_step_29\n") == [
        {"kind": "load", "begun": True, "step": 29, "path": "checkpoints/epoch_0_step_29"}
    ]


@pytest.mark.parametrize("line", ["| step | loss | grad_norm |", "step 5 | loss of power in rack 3", "step 5 | epoch 0 | done"])
def test_other_tables_are_no_steps(line: str) -> None:
    assert events(line + "\n") == []


def test_summarize(tool: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    (run,) = json.loads(tool("summarize", "--json", str(LOG)).stdout)["runs"]
    figures = {field: run[field] for field in ("step", "loss", "validation_loss", "best_validation_loss", "best_validation_step")}
    assert figures == {
        "step": 300,
        "loss": 0.0041,
        "validation_loss": 0.0192,
        "best_validation_loss": 0.0183,
        "best_validation_step": 199,
    }
