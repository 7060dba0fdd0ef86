"""Kimi Delta Attention and latent attention without rotation: layouts have one rank's losses, the planner counts rightly."""

import dataclasses

import pytest
from layouts import Outcome, check_losses_of_one_rank, sampled, train_variants
from running import BRIEF

from lt_shared.console import BadConfig
from lt_shared.contracts.manifest import Dataset
from lt_shared.models.presets import preset
from lt_train.config.settings.parallelism import Parallelism
from lt_train.planner import stage_work
from lt_train.planner.rank_parameters import layer_parameters, stage_parameters

TINY = preset("tiny-kimi-linear")
# Samples longer than a chunk.
TRAINING = ("--model", TINY.name, "--hidden-size", "64", *BRIEF, "--seq-length", "96")
DOCUMENTS = ("--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss")
SPLIT = ("--tensor-model-parallel-size", "2", "--sequence-parallel")
LAYOUTS = sampled(
    {
        "sp2": SPLIT,
        "pp2": ("--pipeline-model-parallel-size", "2"),
        "ep2": ("--expert-model-parallel-size", "2", "--ranks", "2"),
        "overlapped": ("--ranks", "2", "--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"),
        "recomputed": ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"),
        "resumed": ("--load", "stopped"),
        "documents-sp2": (*DOCUMENTS, *SPLIT),
    },
    "sp2",
    "resumed",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> dict[str, Outcome]:
    place = tmp_path_factory.mktemp("runs")
    runs = {"alone": (), "stopped": ("--exit-interval", "1"), "documents-alone": DOCUMENTS, **LAYOUTS}
    return train_variants(TRAINING, runs, dataset.prefix, place, stopped=["stopped"])


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "resumed"])
def test_every_layout_has_the_losses_of_one_rank(layout: str, outcomes: dict[str, Outcome]) -> None:
    *variant, _ = layout.split("-")
    check_losses_of_one_rank(outcomes, layout, "-".join((*variant, "alone")))


def test_a_resumed_run_has_the_same_bits(outcomes: dict[str, Outcome]) -> None:
    stopped, resumed = outcomes["stopped"].losses, outcomes["resumed"].losses
    assert stopped.keys() < outcomes["alone"].losses.keys()
    assert stopped | resumed == outcomes["alone"].losses


def test_the_planner_counts_each_layer() -> None:
    layers = stage_work.model_work(TINY, 64, None).layers
    assert layers[1] == layers[2] != layers[3]
    hidden, mlp = TINY.hidden_size, TINY.mlp_weights(1, TINY.moe_router_topk)
    # Queries, keys and values of 128 channels, 4 betas, 4 taps, an output of 128; decays and gates through latents of 32.
    weights = hidden * (384 + 4) + 4 * 384 + hidden * 128 + 2 * 32 * (hidden + 128) + mlp
    assert layers[1].weights == 2 * weights
    # Four multiplications for each of the 32 x 32 numbers of 4 states.
    assert layers[1].forward == 2 * weights + 2 * 4 * 4096
    # The norms of all layers, that of the latent of 32, A_log, dt_bias and the output's norm.
    assert sum(TINY.vectors(layer, 0) for layer in range(4)) == 4 * 2 * hidden + 32 + 3 * (4 + 128 + 32)


def test_parameters_of_a_rank() -> None:
    pipeline = Parallelism("cpu", 2, 1, 2, False, False)
    stages = [sum(stage_parameters(TINY, pipeline, rank)) for rank in range(2)]
    assert sum(stages) == TINY.parameters()
    split = Parallelism("cpu", 2, 2, 1, True, False)
    whole, half = (sum(layer_parameters(TINY, layout, 1)) for layout in (pipeline, split))
    # The router, the projections to the latents and all norms are whole on both ranks.
    replicated = 8 * TINY.hidden_size + 2 * 32 * TINY.hidden_size + 2 * TINY.hidden_size + 32
    assert 2 * half - whole == replicated


def test_heads_that_a_model_cannot_have() -> None:
    assert TINY.gated_delta is not None
    with pytest.raises(BadConfig, match="Kimi Delta Attention with 2 key heads of 32 channels and 4 value heads of 32"):
        dataclasses.replace(TINY.gated_delta, linear_num_key_heads=2)
    with pytest.raises(BadConfig, match="latent attention with gated_delta"):
        dataclasses.replace(TINY, gated_delta=dataclasses.replace(TINY.gated_delta, decays_channels=False))
