"""A rank that restores a copy of its state from memory goes on bit for bit."""

from importlib.metadata import version
from pathlib import Path

import memory_training
import one_process
import pytest
import torch
from memory_training import RESTORED
from running import losses
from staged_training import STAGED

from lt_train.checkpoint.memory import rank_state
from lt_train.config.megatron_version import release

DROPOUT = ("--hidden-dropout", "0.1", "--attention-dropout", "0.1")
SHARDED = ("--bf16", "--use-distributed-optimizer")
KINDS = {
    "float32": DROPOUT,
    "bf16": ("--bf16",),
    "sharded": (*SHARDED, "--ema-decay", "0.9"),
    "fused": (*SHARDED, "--kernels", "triton"),
    "fp16": ("--fp16", "--initial-loss-scale", str(2**17), "--loss-scale-window", "2"),
    "experts": ("--num-experts", "2", "--moe-router-enable-expert-bias", "--moe-router-score-function", "sigmoid"),
    # As on a GPU, whose copies are made while the next step computes.
    "staged": SHARDED,
    "fsdp": ("--use-torch-fsdp2", "--bf16"),
}
if release(version("megatron-core")) >= (0, 19):
    KINDS["muon"] = ("--optimizer", "muon")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    options = {}
    for name, kind in KINDS.items():
        options[f"{name} whole"] = STAGED if name == "staged" else "", *kind
        options[f"{name} restored"] = RESTORED, *kind
    assert one_process.start(memory_training.__file__, place, options) == [2, 4]
    return place


@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_after_a_copy_are_the_same(kind: str, runs: Path) -> None:
    whole, restored = losses(runs / f"{kind} whole"), losses(runs / f"{kind} restored")
    assert ("step", 4) in restored
    assert restored == {(name, step): loss for (name, step), loss in whole.items() if step > 2}


def test_another_state_is_named() -> None:
    tensors = {"weight": torch.zeros(2, 3), "moment": torch.zeros(2)}
    assert rank_state.describe_difference(tensors, tensors) is None
    assert rank_state.describe_difference(tensors, {"weight": torch.zeros(2, 3)}) == (
        "1 tensor(s) are there or here only: moment"
    )
    other = tensors | {"weight": torch.zeros(3, 2)}
    assert "weight is torch.float32 [3, 2]" in str(rank_state.describe_difference(tensors, other))
