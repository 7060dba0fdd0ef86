"""Sharded weights and optimizers, overlap and recomputation change no loss, and a run goes on from the other's state."""

from pathlib import Path

import pytest
import stored
import torch
from layouts import Outcome, sampled, train_all

from lt_shared.contracts.manifest import Dataset

STEPS = 2
HALF = 1
# fp32 sums in another order, amplified by the steps; see test_parallelism.py.
TOLERANCE = 5e-6
# bf16 rounds sums to 8 bits, but all runs keep fp32 weights: a run that rounded these would soon differ by more.
TOLERANCE_BF16 = 2e-3
# Gradients near zero differ by their rounding, and Adam's first steps are of one length for all gradients.
STATE_TOLERANCES = {"param": 1e-4, "exp_avg": 1e-7, "exp_avg_sq": 1e-11}
RANKS = 4

SMALL = (
    *("--model", "tiny", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128", "--vocab-size", "2100"),
    *("--num-attention-heads", "8", "--num-query-groups", "4", "--seq-length", "32", "--global-batch-size", "12"),
    *("--micro-batch-size", "6", "--train-iters", str(STEPS), "--lr", "3e-3", "--log-interval", "1", "--eval-iters", "1"),
    *("--device", "cpu"),
)
GPT = ("--model", "gpt3-1.7b", "--init-method-std", "0.02")
# Their auxiliary loss goes by the micro batch: the same for all layouts.
EXPERTS = ("--model", "tiny-mixtral", "--micro-batch-size", "2")
BF16 = ("--bf16",)
ZERO = ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather", "--ddp-bucket-size", "20000")
TP2 = ("--tensor-model-parallel-size", "2", "--sequence-parallel")
CP2 = ("--context-parallel-size", "2")
EP2 = ("--expert-model-parallel-size", "2")
FSDP = ("--use-torch-fsdp2",)
INSTANCES = ("--num-distributed-optimizer-instances", "2")
# Two or three micro batches of a batch of 12 on each rank, whether one has it, or two, three or four share it.
TWO, FOUR = ("--ranks", "2"), ("--ranks", "4")
DP2, PAIRS = (*TWO, "--micro-batch-size", "3"), (*FOUR, "--micro-batch-size", "3")
DP3, DP4 = ("--ranks", "3", "--micro-batch-size", "2"), (*FOUR, "--micro-batch-size", "1")
FULL = ("--recompute-granularity", "full")

UNTIED = ("--untie-embeddings-and-output-weights",)
FAMILIES = {"llama": (), "untied": UNTIED, "gpt": GPT, "experts": EXPERTS, "bf16": BF16}
LAYOUTS = sampled(
    {
        "overlap": (*DP3, "--overlap-grad-reduce", "--ddp-bucket-size", "20000"),
        "zero-instances": (*DP4, *ZERO, *INSTANCES),
        # The rows of most weights do not divide by three, and the middle rank has parts of both halves of SwiGLU's.
        "fsdp": (*DP3, *FSDP),
        "fsdp-tp2": (*PAIRS, *FSDP, *TP2),
        "fsdp-cp2": (*PAIRS, *FSDP, *CP2),
        "untied-fsdp-instances": (*DP4, *FSDP, *INSTANCES),
        "fsdp-recompute": (*DP2, *FSDP, *FULL),
        "gpt-fsdp": (*DP2, *FSDP),
        "experts-fsdp": (*DP3, *FSDP),
        "bf16-fsdp": (*DP3, *FSDP),
        "recompute-uniform": (*FULL, "--recompute-method", "uniform", "--recompute-num-layers", "2"),
        "recompute-block": (*FULL, "--recompute-method", "block", "--recompute-num-layers", "1"),
        "recompute-modules": ("--recompute-granularity", "selective", "--recompute-modules", "core_attn,mlp"),
        "recompute-tp2": (*TP2, "--recompute-activations"),
        "experts-ep2-recompute": (*TWO, *EP2, "--recompute-granularity", "selective", "--recompute-modules", "moe"),
        # The rows of two micro batches are counted before the first is computed again.
        "experts-ep2-pp2-recompute": (*FOUR, *EP2, "--pipeline-model-parallel-size", "2", *FULL),
        "experts-recompute": ("--recompute-granularity", "selective", "--recompute-modules", "moe"),
    },
    "bf16-fsdp",
)
# The first half of the run under one, the second half under the other.
CHANGES = {
    "fsdp-to-other-fsdp": ("fsdp-half", (*PAIRS, *FSDP, *TP2)),
    "fsdp-to-zero": ("fsdp-half", (*DP2, *ZERO)),
    "zero-to-fsdp": ("zero-half", (*DP4, *FSDP, *INSTANCES)),
    "experts-fsdp-to-zero": ("experts-fsdp-half", (*TWO, *EP2, *ZERO)),
    "experts-zero-to-fsdp": ("experts-zero-half", (*DP3, *FSDP)),
}


def family_of(layout: str) -> str:
    first = layout.split("-")[0]
    return first if first in FAMILIES else "llama"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> dict[str, Outcome]:
    data = ("--data-cache-path", str(tmp_path_factory.mktemp("cache")), dataset.prefix)
    commands = {f"{family}-alone": (*SMALL, *options, *data) for family, options in FAMILIES.items()}
    commands |= {name: (*SMALL, *FAMILIES[family_of(name)], *options, *data) for name, options in LAYOUTS.items()}
    return train_all(commands, tmp_path_factory.mktemp("layouts"), RANKS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_equal_those_of_one_rank(layout: str, outcomes: dict[str, Outcome]) -> None:
    alone, found = outcomes[f"{family_of(layout)}-alone"], outcomes[layout]
    assert alone.error is None, alone.error
    assert found.error is None, found.error
    tolerance = TOLERANCE_BF16 if layout.startswith("bf16") else TOLERANCE
    assert found.losses == pytest.approx(alone.losses, abs=tolerance)
    assert alone.losses["eval", STEPS] < alone.losses["step", 1] - 0.01


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resumed")


@pytest.fixture(scope="module")
def resumed(place: Path, dataset: Dataset) -> dict[str, Outcome]:
    data = ("--data-cache-path", str(place / "cache"), dataset.prefix)
    end = ("--exit-interval", str(HALF))
    commands = {
        "fsdp-half": (*SMALL, *DP3, *FSDP, *end, *data),
        "bf16-half": (*SMALL, *BF16, *DP3, *FSDP, *end, *data),
        "bf16-zero-half": (*SMALL, *BF16, *DP3, *ZERO, *end, *data),
        "experts-fsdp-half": (*SMALL, *EXPERTS, *DP3, *FSDP, *end, *data),
        "experts-zero-half": (*SMALL, *EXPERTS, *TWO, *EP2, *ZERO, *end, *data),
        # The last of the halves: no rank looks for one of them before it is saved.
        "zero-half": (*SMALL, *DP4, *ZERO, *end, *data),
        "bf16": (*SMALL, *BF16, *DP3, *FSDP, "--load", str(place / "bf16-half"), *data),
    }
    for name, (first, options) in CHANGES.items():
        commands[name] = (*SMALL, *FAMILIES[family_of(name)], *options, "--load", str(place / first), *data)
    return train_all(commands, place, RANKS, saving=True)


@pytest.mark.usefixtures("resumed")
def test_checkpoints_hold_the_same_tensors(place: Path) -> None:
    """Weights, moments and the optimizer's weights, also where ranks have the ends of rows, or gather weights late."""
    fsdp, zero = (stored.tensors(place / name / "iter_0000001") for name in ("fsdp-half", "zero-half"))
    assert fsdp.keys() == zero.keys()
    weights = [key for key in fsdp if not key.startswith("optimizer.")]
    for key in weights:
        assert torch.equal(fsdp[key], fsdp[f"optimizer.state.param.{key}"])
        assert torch.equal(zero[key], zero[f"optimizer.state.param.{key}"])
        for name, allowed in STATE_TOLERANCES.items():
            state = f"optimizer.state.{name}.{key}"
            torch.testing.assert_close(fsdp[state], zero[state], rtol=1e-3, atol=allowed)
            assert fsdp[state].any(), state


@pytest.mark.usefixtures("resumed")
def test_half_precision_begins_from_the_same_master_weights(place: Path) -> None:
    """Adam's first step is of one length wherever a gradient is not near zero."""
    fsdp, zero = (stored.tensors(place / name / "iter_0000001") for name in ("bf16-half", "bf16-zero-half"))
    masters = [key for key in fsdp if key.startswith("optimizer.state.param.")]
    assert masters
    for key in masters:
        differing = (fsdp[key] - zero[key]).abs() > 1e-6
        assert differing.float().mean() < 0.1, key


@pytest.mark.parametrize("change", CHANGES)
def test_state_is_one_for_fsdp_and_the_distributed_optimizer(
    change: str, outcomes: dict[str, Outcome], resumed: dict[str, Outcome]
) -> None:
    whole, second = outcomes[f"{family_of(change)}-alone"], resumed[change]
    assert second.error is None, second.error
    assert second.losses.keys() == {("step", 2), ("eval", 2)}
    assert second.losses == pytest.approx({key: whole.losses[key] for key in second.losses}, abs=TOLERANCE)


def test_half_precision_resumes_from_its_full_precision_weights(
    outcomes: dict[str, Outcome], resumed: dict[str, Outcome]
) -> None:
    whole, second = outcomes["bf16-fsdp"], resumed["bf16"]
    assert second.error is None, second.error
    assert second.losses == {key: whole.losses[key] for key in second.losses}
