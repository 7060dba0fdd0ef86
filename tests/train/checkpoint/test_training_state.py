"""Checkpoints fit every layout and every kind of optimizer, tensor by tensor, and Megatron-LM's own loader."""

import contextlib
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import stored
import torch
from layouts import Outcome, plan_of, sampled, train_all
from running import environment
from torch.distributed.checkpoint import FileSystemReader

from lt_shared.console import BadConfig
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.checkpoint_layout import RunRecord
from lt_shared.contracts.manifest import Dataset
from lt_train.checkpoint import resume

MODEL = (
    *("--model", "tiny", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128", "--num-query-groups", "4"),
    *("--seq-length", "32", "--global-batch-size", "4", "--log-interval", "1", "--eval-iters", "0", "--device", "cpu"),
    *("--lr", "1e-3", "--save-interval", "1", "--train-iters", "2", "--micro-batch-size", "2"),
)
ORIGIN = "iter_0000001"
ONE_STEP = ("--exit-interval", "1")
TP2_PP2 = ("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2", "--ranks", "4")
DISTRIBUTED = "--use-distributed-optimizer"
KINDS = {
    "plain": (),
    "distributed": (DISTRIBUTED,),
    "bf16": ("--bf16",),
    "bf16-distributed": ("--bf16", DISTRIBUTED),
}
FASTER = ("--lr", "5e-3", "--min-lr", "2e-3", "--lr-decay-style", "constant")
# Both megatron-cores have those between optimizers of float32.
CHANGES = sampled(
    {
        ("plain", "distributed"): (),
        ("plain", "bf16-distributed"): (),
        ("distributed", "plain"): (),
        ("distributed", "bf16"): (),
        ("bf16", "distributed"): (),
        ("bf16-distributed", "plain"): (),
        ("bf16-distributed", "distributed"): (),
    },
    ("distributed", "plain"),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    """Runs that trained, and in `again` runs that loaded one of them in another layout and saved it at once."""
    place = tmp_path_factory.mktemp("checkpoint")

    def command(*options: str, ranks: int = 2) -> tuple[str, ...]:
        return (*MODEL, *(() if "--ranks" in options else ("--ranks", str(ranks))), *options, dataset.prefix)

    trained = {
        "origin": command(*TP2_PP2, *ONE_STEP),
        **{kind: command(*options, *(ONE_STEP if "bf16" in kind else ())) for kind, options in KINDS.items()},
        "dropout": command("--hidden-dropout", "0.2", "--attention-dropout", "0.2", ranks=1),
        "dropout-resumed": command(
            *("--hidden-dropout", "0.2", "--attention-dropout", "0.2"), "--load", str(place / "dropout" / ORIGIN), ranks=1
        ),
        "resumed": command(DISTRIBUTED, "--load", str(place / "distributed" / ORIGIN)),
        **{
            f"{kind}-faster": command(*KINDS[kind], *FASTER, "--load", str(place / kind / ORIGIN))
            for kind in ("plain", "distributed", "bf16")
        },
        "weights-only": command("--no-save-optim", "--no-save-rng", ranks=1),
        "finetuned": command("--load", str(place / "origin" / ORIGIN), "--finetune"),
        "without-moments": command("--load", str(place / "weights-only" / ORIGIN), "--no-load-optim", ranks=1),
    }
    check(train_all(trained, place, ranks=4, saving=("origin", *KINDS, "dropout", "weights-only")))
    again = {
        "tp4": command("--tensor-model-parallel-size", "4", "--load", str(place / "origin" / ORIGIN), ranks=4),
        "dp4": command(DISTRIBUTED, "--micro-batch-size", "1", "--load", str(place / "origin" / ORIGIN), ranks=4),
        "fsdp": command("--use-torch-fsdp2", "--load", str(place / "distributed" / ORIGIN)),
        **{
            f"{there}-to-{here}": command(*KINDS[here], "--load", str(place / there / ORIGIN), ranks=1) for there, here in CHANGES
        },
    }
    (place / "again").mkdir()
    check(train_all(again, place / "again", ranks=4, saving=True, steps=False))
    return place


def check(outcomes: dict[str, Outcome]) -> None:
    errors = {name: outcome.error for name, outcome in outcomes.items() if outcome.error}
    assert not errors, errors


def losses(run: Path) -> list[float]:
    from running import losses

    return [loss for (kind, _), loss in sorted(losses(run).items()) if kind == "step"]


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, whole; the fp32 weights under one name for every kind of optimizer."""
    found = stored.tensors(directory)
    parameters = [key for key in found if not key.startswith("optimizer.")]
    names = {"optimizer.state.param.": "master.", "optimizer.state.fp32_param.": "master."}
    renamed = {}
    for key, tensor in found.items():
        for prefix, name in names.items():
            key = name + key.removeprefix(prefix) if key.startswith(prefix) else key
        renamed[key] = tensor
    return {f"master.{key}": found[key] for key in parameters} | renamed


def assert_same(found: Path, expected: Path, weights_rounded: bool = False) -> None:
    theirs, ours = tensors(expected / ORIGIN), tensors(found / ORIGIN)
    assert theirs.keys() == ours.keys()
    for key, tensor in theirs.items():
        if key.startswith(("master.", "optimizer.")) or not weights_rounded:
            assert torch.equal(tensor, ours[key]), key
        else:
            assert torch.equal(tensor.bfloat16(), ours[key].bfloat16()), key


@pytest.mark.parametrize("layout", ["tp4", "dp4"])
def test_another_layout_holds_the_same_tensors(runs: Path, layout: str) -> None:
    assert_same(runs / "again" / layout, runs / "origin")


def test_fsdp_holds_the_same_tensors_as_the_distributed_optimizer(runs: Path) -> None:
    assert_same(runs / "again/fsdp", runs / "distributed")


@pytest.mark.parametrize(("there", "here"), CHANGES)
def test_another_kind_of_optimizer_holds_the_same_tensors(runs: Path, there: str, here: str) -> None:
    """fp32 weights and moments are the same; the weights of the model are rounded where one of the two is in bf16."""
    assert_same(runs / "again" / f"{there}-to-{here}", runs / there, weights_rounded="bf16" in there + here)


def test_steps_of_adam_are_kept(runs: Path) -> None:
    """Nothing in a checkpoint's tensors tells them; a wrong number changes the bias correction of every later step."""
    common = {name: common_state(runs / "again" / name / ORIGIN) for name in ("plain-to-distributed", "distributed-to-plain")}
    assert common["plain-to-distributed"]["optimizer"]["optimizer"]["param_groups"][0]["step"] == 1
    assert common["distributed-to-plain"]["optimizer"]["state"]["common_step"] == 1


def common_state(directory: Path) -> dict[str, object]:
    from megatron.core import dist_checkpointing
    from megatron.core.safe_globals import register_safe_globals

    register_safe_globals()
    return dist_checkpointing.load_common_state_dict(str(directory))


@pytest.mark.parametrize("kind", ["plain", "distributed", "bf16"])
def test_a_resumed_run_has_the_learning_rate_that_it_was_given(runs: Path, kind: str) -> None:
    """Not the one in the groups of the optimizer that it loads, by which megatron-core 0.19 even finds them."""
    lines = map(json.loads, (runs / f"{kind}-faster" / "metrics.jsonl").read_text().splitlines())
    rates = {line["step"]: line["learning_rate"] for line in lines if line["kind"] == "step"}
    assert rates == {2: 5e-3}


def test_dropout_draws_on_as_if_nothing_had_happened(runs: Path) -> None:
    assert losses(runs / "dropout-resumed") == losses(runs / "dropout")[1:]
    assert losses(runs / "dropout") != losses(runs / "plain")


def test_finetuning_starts_anew_with_the_weights(runs: Path) -> None:
    first = losses(runs / "finetuned")
    assert len(first) == 2
    assert first[0] < losses(runs / "origin")[0] - 0.005


def test_a_checkpoint_without_an_optimizer(runs: Path, dataset: Dataset) -> None:
    saved = runs / "weights-only" / ORIGIN
    assert not [key for key in FileSystemReader(saved).read_metadata().state_dict_metadata if "optimizer" in key or "rng" in key]
    assert len(losses(runs / "without-moments")) == 1
    plan = plan_of([*MODEL, "--save", str(runs / "weights-only"), dataset.prefix])
    with pytest.raises(BadConfig, match="without an optimizer state"):
        resume.check_compatible(resume.choose_start(plan), str(saved))


@pytest.mark.parametrize(
    ("version", "file", "is_read"), [("9.0.0", "a", False), ("9.0.0", "common.pt", True), ("0.1.0", "a", True)]
)
def test_a_checkpoint_of_a_later_megatron_core(
    runs: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, version: str, file: str, is_read: bool
) -> None:
    saved = runs / "plain" / ORIGIN
    record = RunRecord.read(saved)
    versions = record.versions | {"megatron-core": version}
    monkeypatch.setattr(resume, "record", lambda directory: dataclasses.replace(record, versions=versions, files={file: 1}))
    plan = plan_of([*MODEL, "--load", str(saved), dataset.prefix])
    with contextlib.nullcontext() if is_read else pytest.raises(BadConfig, match=r"megatron-core 9\.0\.0"):
        resume.check_compatible(plan, str(saved))


def test_a_resumed_run_gives_every_parameter_its_own_step_counter(runs: Path) -> None:
    """megatron-core restores one counter for all of them, which Adam then moves on once per parameter."""
    assert losses(runs / "resumed") == losses(runs / "distributed")[1:]


def test_megatron_loads_it(runs: Path) -> None:
    """megatron-core's own model, optimizer and loader, asked for what Megatron-LM's load_checkpoint asks for."""
    program = [sys.executable, str(Path(__file__).parents[1] / "megatron_loading.py")]
    program += [str(runs / run) for run in ("dropout", "bf16-distributed")]
    done = subprocess.run(program, env=environment(), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_record_says_what_is_in_it(runs: Path) -> None:
    assert RunRecord.read(runs / "bf16-distributed" / ORIGIN).distributed_optimizer is True
    assert RunRecord.read(runs / "weights-only" / ORIGIN).distributed_optimizer is None
    assert checkpoint_layout.read_tracker(runs / "plain") == 2
