"""Layers with a state under context parallelism: ranks exchange tokens for heads, and have one rank's losses."""

import dataclasses

import pytest
from layouts import Outcome, check_losses_of_one_rank, sampled, train_variants
from running import BRIEF

from lt_shared.console import BadConfig
from lt_shared.contracts.manifest import Dataset
from lt_shared.models.architecture import Architecture
from lt_shared.models.presets import preset
from lt_train.config.settings import parallelism
from lt_train.config.settings.parallelism import Parallelism

# Samples longer than a chunk of the states, on two and on four ranks.
TRAINING = ("--hidden-size", "64", *BRIEF, "--seq-length", "144")
DOCUMENTS = ("--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss")
SPLIT = ("--tensor-model-parallel-size", "2", "--sequence-parallel")
TWO, FOUR = ("--context-parallel-size", "2"), ("--context-parallel-size", "4")
MODELS = {
    "delta": "tiny-qwen3-next",
    "kimi": "tiny-kimi-linear",
    "mamba": "tiny-nemotron-h",
    "convolution": "tiny-lfm2",
}
ALONE = {
    f"{name}{kind}-alone": ("--model", model, *options)
    for name, model in MODELS.items()
    for kind, options in (("", ()), ("_documents", DOCUMENTS))
}
LAYOUTS = sampled(
    {f"{name}-cp2": ("--model", model, *TWO) for name, model in MODELS.items()}
    | {f"{name}_documents-cp2": ("--model", model, *DOCUMENTS, *TWO) for name, model in MODELS.items()}
    | {f"{name}-sp2-cp2": ("--model", model, *SPLIT, *TWO) for name, model in MODELS.items() if name != "delta"}
    | {
        # Two groups of heads, which pairs of ranks share.
        "mamba-cp4": ("--model", MODELS["mamba"], *FOUR),
        "delta-fsdp2-cp2": ("--model", MODELS["delta"], *TWO, "--ranks", "4", "--use-torch-fsdp2"),
        "kimi-ep2-cp2": ("--model", MODELS["kimi"], *TWO, "--expert-model-parallel-size", "2", "--ranks", "2"),
        "delta-pp2-cp2": ("--model", MODELS["delta"], *TWO, "--pipeline-model-parallel-size", "2"),
        "mamba-optimizer-cp2": ("--model", MODELS["mamba"], *TWO, "--use-distributed-optimizer", "--overlap-grad-reduce"),
        "mamba-recomputed-cp2": (
            *("--model", MODELS["mamba"], *TWO, "--recompute-granularity", "full", "--recompute-method", "uniform"),
            *("--recompute-num-layers", "1"),
        ),
    },
    *(f"{name}-cp2" for name in MODELS),
    "mamba-cp4",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> dict[str, Outcome]:
    return train_variants(TRAINING, {**ALONE, **LAYOUTS}, dataset.prefix, tmp_path_factory.mktemp("runs"), ranks=4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_losses_of_one_rank(layout: str, outcomes: dict[str, Outcome]) -> None:
    check_losses_of_one_rank(outcomes, layout, f"{layout.split('-')[0]}-alone")


def refusals(model: Architecture, tensor: int, context: int) -> list[str]:
    parallel = Parallelism("cpu", tensor * context, tensor, 1, tensor > 1, False, context=context)
    problems = list(parallelism.check(parallel, model, 96))
    assert all(isinstance(problem, BadConfig) for problem in problems)
    return [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("name", "tensor", "context", "message"),
    [
        ("tiny-qwen3-next", 1, 4, "key heads of gated delta 2 not divisible by tensor x context parallel size 1 x 4"),
        ("tiny-kimi-linear", 2, 4, "heads of gated delta 4 not divisible by tensor x context parallel size 2 x 4"),
        ("tiny-nemotron-h", 2, 8, "Mamba heads 8 not divisible by tensor x context parallel size 2 x 8"),
    ],
)
def test_ranks_that_cannot_divide_the_heads(name: str, tensor: int, context: int, message: str) -> None:
    assert message in "; ".join(refusals(preset(name), tensor, context))


def test_groups_of_mamba_heads_that_ranks_cannot_share() -> None:
    model = preset("tiny-nemotron-h")
    assert model.mamba is not None
    of_three = dataclasses.replace(model, mamba=dataclasses.replace(model.mamba, mamba_num_heads=12, mamba_num_groups=3))
    assert refusals(of_three, 1, 3) == refusals(model, 1, 8) == refusals(model, 2, 4) == []
    (problem,) = refusals(of_three, 1, 2)
    assert problem == "groups of Mamba heads 3 neither a multiple nor a divisor of tensor x context parallel size 1 x 2"
