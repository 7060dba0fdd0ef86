"""`lt_train.plan`: what `lt-train plan --json` prints, typed, with the options as keywords."""

import dataclasses
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from running import train

import lt_train
from lt_shared import BadConfig, UsageError
from lt_train.commands import plan_layout

LARGE: dict[str, Any] = {"model": "llama3.1-70b", "gpu": "h100-80gb", "nodes": 8, "bf16": True, "global_batch_size": 1024}
LARGE_FLAGS = ("--model", "llama3.1-70b", "--gpu", "h100-80gb", "--nodes", "8", "--bf16", "--global-batch-size", "1024")


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({}, ()),
        (
            {"tensor_model_parallel_size": 8, "sequence_parallel": True},
            ("--tensor-model-parallel-size", "8", "--sequence-parallel"),
        ),
        ({"gpus_per_node": 4, "seq_length": 4096}, ("--gpus-per-node", "4", "--seq-length", "4096")),
        ({"ranks": np.int64(2), "lr": np.float32(0.5)}, ("--ranks", "2", "--lr", "0.5")),
        (
            {"rampup_batch_size": [64, 64, 10_000], "train_iters": 100},
            ("--rampup-batch-size", "64", "64", "10000", "--train-iters", "100"),
        ),
        ({"recompute_granularity": None, "use_torch_fsdp2": False}, ()),
    ],
    ids=["best layout", "own layout", "cluster", "ranks", "several values", "left out"],
)
def test_it_says_what_the_command_prints(options: dict[str, Any], flags: tuple[str, ...]) -> None:
    record = json.loads(train("plan", "--json", *LARGE_FLAGS, *flags).out)
    plan = lt_train.plan(**LARGE, **options)
    assert json.loads(json.dumps(plan.record)) == record
    assert dataclasses.asdict(plan.layout) == {name: record[name] for name in dataclasses.asdict(plan.layout)}
    for name in ("fits", "usable_bytes", "rank_memory_bytes", "options"):
        assert getattr(plan, name) == record[name]
    assert list(plan.ranks_memory_bytes) == record["ranks_memory_bytes"]


def test_what_does_not_fit_is_no_error() -> None:
    plan = lt_train.plan(model="llama3.1-70b", gpu="t4-16gb")
    assert not plan.fits and plan.rank_memory_bytes["total"] > plan.usable_bytes
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.fits = True  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"nodez": 3}, "no option nodez", "did you mean nodes?"),
        ({"as_json": True}, "no option as_json", "see lt-train plan --help"),
        ({"gpu": "x100"}, "'x100' is not one of", None),
        ({"nodes": 0}, "0 is not in the range", None),
        ({"seq_length": "long"}, "'long' is not a valid integer range", None),
        ({"bf16": 1}, "bf16 is 1, and takes True or False", None),
        ({"seq_length": True}, "seq_length is True, and takes a value", None),
        ({"rampup_batch_size": [1, 2]}, "requires 3 arguments", None),
        ({"seq_length": {"long": 1}}, "is not a valid integer range", None),
        ({"model": "llama9"}, "no model preset 'llama9'", "presets of a like name: llama2-7b"),
        ({"model": "--help"}, "no model preset '--help'", "lt-train models lists the presets"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_options_that_cannot_be(options: dict[str, Any], message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as raised:
        lt_train.plan(**LARGE | options)
    assert message in str(raised.value)
    assert (raised.value.hint or "").startswith(hint or "")


def test_a_model_that_no_layout_divides() -> None:
    with pytest.raises(BadConfig, match="no layout divides tiny"):
        lt_train.plan(model="tiny", gpu="h100-80gb", global_batch_size=7, micro_batch_size=2)


def test_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even after the same process has asked for the command's help, which names its variables."""
    before = lt_train.plan(**LARGE)
    with pytest.raises(click.exceptions.Exit):
        plan_layout.command.make_context("plan", ["--help"], auto_envvar_prefix="LT_TRAIN")
    monkeypatch.setenv("LT_TRAIN_SEQ_LENGTH", "1024")
    monkeypatch.setenv("LT_TRAIN_PLAN_NODES", "1")
    monkeypatch.setenv("LT_TRAIN_NODES", "1")
    assert lt_train.plan(**LARGE) == before


def test_options_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("seq-length = 2048\nbf16 = true\n")
    plan = lt_train.plan(model="llama3-8b", gpu="h100-80gb", config=tmp_path / "run.toml")
    assert plan == lt_train.plan(model="llama3-8b", gpu="h100-80gb", seq_length=2048, bf16=True)


def test_threads_plan_at_the_same_time(capfd: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(lambda _: lt_train.plan(**LARGE), range(8)))
    assert plans == [plans[0]] * 8
    assert capfd.readouterr().out == ""


def test_torch_is_not_imported() -> None:
    code = "import sys, lt_train; lt_train.plan(model='tiny', gpu='h100'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
