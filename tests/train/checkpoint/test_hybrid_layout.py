"""Checkpoints with the layers of megatron-core's HybridModel: saved, loaded in other layouts, and loaded by HybridModel."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import stored
import torch
from layouts import train_all
from running import environment

from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.manifest import Dataset

SHORT = (
    *("--seq-length", "32", "--global-batch-size", "4", "--log-interval", "1", "--eval-iters", "0", "--device", "cpu"),
    *("--lr", "1e-3", "--train-iters", "2", "--save-interval", "1", "--micro-batch-size", "2", "--bf16", "--ranks", "2"),
)
DENSE = ("--model", "tiny", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128", "--num-query-groups", "4")
# A dense layer first, so that GPTModel's checkpoints have a tensor for each layer, too.
EXPERTS = ("--model", "tiny-glm4-moe", "--mtp-num-layers", "0", "--num-layers", "2")
HYBRID, GPT = ("--ckpt-layout", "hybrid"), ("--ckpt-layout", "gpt")
DISTRIBUTED, FSDP = "--use-distributed-optimizer", "--use-torch-fsdp2"
ITERATION = "iter_0000001"
ONE_STEP = ("--exit-interval", "1")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    """Runs that trained, and in `again` runs that loaded one of them and saved it at once."""
    place = tmp_path_factory.mktemp("hybrid")
    trained = {
        "gpt": (*DENSE, *SHORT, *ONE_STEP, DISTRIBUTED, dataset.prefix),
        "hybrid": (*DENSE, *SHORT, *ONE_STEP, DISTRIBUTED, *HYBRID, dataset.prefix),
        "experts gpt": (*EXPERTS, *SHORT, *ONE_STEP, dataset.prefix),
        "experts hybrid": (*EXPERTS, *SHORT, *ONE_STEP, *HYBRID, dataset.prefix),
    }
    again = {
        "to gpt": (*DENSE, *SHORT, "--tensor-model-parallel-size", "2", *GPT, "--load", str(place / "hybrid"), dataset.prefix),
        "still hybrid": (*DENSE, *SHORT, FSDP, "--load", str(place / "hybrid"), dataset.prefix),
        "to hybrid": (*DENSE, *SHORT, FSDP, *HYBRID, "--load", str(place / "gpt"), dataset.prefix),
        "experts to gpt": (*EXPERTS, *SHORT, *GPT, "--load", str(place / "experts hybrid"), dataset.prefix),
    }
    errors = [outcome.error for outcome in train_all(trained, place, ranks=2, saving=True).values() if outcome.error]
    assert not errors, errors
    (place / "again").mkdir()
    outcomes = train_all(again, place / "again", ranks=2, saving=True, steps=False)
    errors = [outcome.error for outcome in outcomes.values() if outcome.error]
    assert not errors, errors
    return place


def tensors(run: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, whole; the fp32 weights under one name for every kind of optimizer."""
    return {name.replace(".fp32_param.", ".param."): tensor for name, tensor in stored.tensors(run / ITERATION).items()}


@pytest.mark.parametrize(
    ("loaded", "expected"),
    [
        ("again/to gpt", "gpt"),
        ("again/still hybrid", "hybrid"),
        ("again/to hybrid", "hybrid"),
        ("again/experts to gpt", "experts gpt"),
    ],
)
def test_every_bit_is_kept(runs: Path, loaded: str, expected: str) -> None:
    """Weights, moments and main weights, in another layout, with another kind of optimizer."""
    theirs, ours = tensors(runs / expected), tensors(runs / loaded)
    assert theirs.keys() == ours.keys()
    assert len([name for name in theirs if name.startswith("optimizer.state.exp_avg_sq.")]) >= 8
    assert [name for name, tensor in theirs.items() if not torch.equal(tensor, ours[name])] == []


def test_layers_are_those_of_hybrid_model(runs: Path) -> None:
    names = tensors(runs / "hybrid").keys()
    assert {f"decoder.layers.{number}.self_attention.linear_proj.weight" for number in (0, 2)} <= names
    assert {f"optimizer.state.exp_avg.decoder.layers.{number}.mlp.linear_fc2.weight" for number in (1, 3)} <= names
    formats = [checkpoint_layout.torch_dist_format(runs / run / ITERATION) for run in ("hybrid", "gpt", "again/still hybrid")]
    assert formats == ["megatron-hybrid", "megatron-dist", "megatron-hybrid"]


@pytest.mark.skipif(
    tuple(map(int, metadata.version("megatron-core").split(".")[:2])) < (0, 19),
    reason="HybridModel came with megatron-core 0.19, for which Python 3.12 is needed",
)
def test_hybrid_model_loads_it(runs: Path) -> None:
    """megatron-core's own HybridModel, distributed optimizer and loader."""
    program = [sys.executable, str(Path(__file__).parents[1] / "megatron_loading.py"), str(runs / "hybrid")]
    done = subprocess.run(program, env=environment(), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
