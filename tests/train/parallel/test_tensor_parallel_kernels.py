"""Triton's kernels on ranks that share each layer: the losses are those of one rank, in Triton's interpreter."""

import pytest
from layouts import Outcome, sampled, train_all

RANKS = 4
SMALL = (
    *("--mock-data", "--model", "tiny", "--num-layers", "1", "--hidden-size", "32", "--ffn-hidden-size", "64"),
    *("--num-attention-heads", "4", "--num-query-groups", "4", "--vocab-size", "100", "--seq-length", "8", "--lr", "1e-2"),
    *("--micro-batch-size", "1", "--global-batch-size", "1", "--train-iters", "2", "--log-interval", "1"),
    *("--eval-interval", "2", "--eval-iters", "1", "--device", "cpu", "--kernels", "triton"),
)
TP2, TP4 = (("--tensor-model-parallel-size", str(size)) for size in (2, 4))
SP = ("--sequence-parallel",)
BF16 = ("--bf16", "--accumulate-allreduce-grads-in-fp32")
# The vocabulary is padded to 256 rows on two ranks and to 512 on four: the last ranks have padding alone.
FAMILIES = {"fp32": ("--z-loss-coeff", "1e-2"), "bf16": BF16}
LAYOUTS = sampled({"fp32-tp2": TP2, "fp32-tp4-sp": (*TP4, *SP), "bf16-tp2-sp": (*TP2, *SP)})
# Rounding of 16 bits in other places; in fp32 as in test_parallelism.py.
TOLERANCES = {"fp32": 5e-6, "bf16": 1e-2}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    commands = {f"{family}-alone": (*SMALL, *options) for family, options in FAMILIES.items()}
    commands |= {name: (*SMALL, *FAMILIES[name.partition("-")[0]], *options) for name, options in LAYOUTS.items()}
    return train_all(commands, tmp_path_factory.mktemp("layouts"), RANKS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_equal_those_of_one_rank(layout: str, outcomes: dict[str, Outcome]) -> None:
    family = layout.partition("-")[0]
    alone, found = outcomes[f"{family}-alone"], outcomes[layout]
    assert alone.error is None, alone.error
    assert found.error is None, found.error
    assert found.losses == pytest.approx(alone.losses, abs=TOLERANCES[family])
    assert alone.losses["step", 2] < alone.losses["step", 1] - 0.01
