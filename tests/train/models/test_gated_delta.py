"""Gated delta layers: documents are mixed alone, every layout has one rank's losses, and others are refused."""

import dataclasses

import pytest
import torch
from layouts import Outcome, check_losses_of_one_rank, sampled, train_variants
from running import BRIEF

from lt_shared.console import BadConfig
from lt_shared.contracts.manifest import Dataset
from lt_shared.models.architecture.sizes import GATED_DELTA
from lt_shared.models.presets import preset
from lt_train.config.settings import parallelism
from lt_train.config.settings.parallelism import Parallelism
from lt_train.models.mixers.convolution import convolve
from lt_train.ops.gated_delta_rule import CHUNK
from lt_train.planner import mixer_costs, stage_work
from lt_train.planner.activations import Activations
from lt_train.planner.rank_parameters import layer_parameters, stage_parameters

TINY = preset("tiny-qwen3-next")
# Samples longer than a chunk.
TRAINING = ("--model", TINY.name, "--hidden-size", "64", *BRIEF, "--seq-length", "96")
DOCUMENTS = ("--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss")
HYBRID = ("--model", "tiny-olmo-hybrid")
SPLIT = ("--tensor-model-parallel-size", "2", "--sequence-parallel")
LAYOUTS = sampled(
    {
        "sp2": SPLIT,
        "pp2": ("--pipeline-model-parallel-size", "2"),
        "ep2": ("--expert-model-parallel-size", "2", "--ranks", "2"),
        "overlapped": ("--ranks", "2", "--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"),
        "fsdp2": ("--ranks", "2", "--use-torch-fsdp2"),
        "recomputed": ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"),
        "resumed": ("--load", "stopped"),
        "documents-sp2": (*DOCUMENTS, *SPLIT),
        # Without sequence parallelism, and with norms behind attention.
        "hybrid-tp2": (*HYBRID, "--tensor-model-parallel-size", "2"),
        "hybrid-pp2": (*HYBRID, "--pipeline-model-parallel-size", "2"),
    },
    "sp2",
    "documents-sp2",
    "hybrid-tp2",
    "resumed",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> dict[str, Outcome]:
    place = tmp_path_factory.mktemp("runs")
    runs = {"alone": (), "stopped": ("--exit-interval", "1"), "documents-alone": DOCUMENTS, "hybrid-alone": HYBRID, **LAYOUTS}
    return train_variants(TRAINING, runs, dataset.prefix, place, stopped=["stopped"])


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "resumed"])
def test_every_layout_has_the_losses_of_one_rank(layout: str, outcomes: dict[str, Outcome]) -> None:
    *variant, _ = layout.split("-")
    check_losses_of_one_rank(outcomes, layout, "-".join((*variant, "alone")))


def test_a_resumed_run_has_the_same_bits(outcomes: dict[str, Outcome]) -> None:
    stopped, resumed = outcomes["stopped"].losses, outcomes["resumed"].losses
    assert stopped.keys() < outcomes["alone"].losses.keys()
    assert stopped | resumed == outcomes["alone"].losses


def test_a_document_is_convolved_alone() -> None:
    generator = torch.Generator().manual_seed(2)
    channels, weight = torch.randn(9, 1, 4, generator=generator), torch.randn(4, 1, 3, generator=generator)
    numbers = torch.tensor([0, 0, 0, 0, 0, 1, 2, 2, 2])[:, None]
    together = convolve(channels, weight, numbers, True)
    for start, stop in ((0, 5), (5, 6), (6, 9)):
        convolved = torch.nn.functional.conv1d(channels[start:stop, 0].t(), weight, padding=2, groups=4)[:, : stop - start]
        torch.testing.assert_close(together[start:stop, 0].t(), torch.nn.functional.silu(convolved))
        torch.testing.assert_close(convolve(channels[start:stop], weight, None, True), together[start:stop])
        torch.testing.assert_close(convolve(channels, weight, numbers, False)[start:stop, 0].t(), convolved)


def test_the_planner_counts_each_layer() -> None:
    delta = TINY.gated_delta
    assert delta is not None
    layers = stage_work.model_work(TINY, 64, None).layers
    assert layers[0] == layers[1] == layers[2] != layers[3]
    hidden, mlp = TINY.hidden_size, TINY.mlp_weights(0, TINY.moe_router_topk)
    # Queries, keys, values and gates of 64 + 64 + 128 + 128 channels, 4 betas and alphas, 4 taps, an output of 128.
    weights = hidden * (384 + 8) + 4 * 256 + hidden * 128 + mlp
    assert layers[0].weights == 2 * weights
    # Four multiplications for each of the 32 x 32 numbers of 4 states.
    assert layers[0].forward == 2 * weights + 2 * 4 * 4096
    assert layers[0].backward == 2 * weights + 2 * 2 * 4 * 4096
    # The norms of both layers, those of queries and keys, A_log, dt_bias and the output's norm.
    vectors = 4 * 2 * hidden + 2 * 32 + 3 * (4 + 4 + 32)
    assert sum(TINY.vectors(layer, 0) for layer in range(4)) == vectors


def test_the_planner_counts_what_a_layer_computes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 heads of 32 x 32 channels and chunks of 64 tokens; a layer at a time, when the logits are gone."""
    row = mixer_costs.COSTS[GATED_DELTA]
    parallel = Parallelism("cpu", 1, 1, 1, False, False)
    activations = Activations(TINY, parallel, None, 1, 4096, 4, False, True, False, False)
    counted = activations.bytes_on_rank(0)
    monkeypatch.setitem(mixer_costs.COSTS, GATED_DELTA, row._replace(recomputed=lambda model, setting: 0))
    logits = 4096 * 2048 * 4
    assert counted - activations.bytes_on_rank(0) == 4096 * 4 * (4 * (5 * 64 + 12 * 32 + 32 * 32 // 64)) - logits
    assert mixer_costs.CHUNK == CHUNK


def test_the_planner_counts_what_kernels_keep() -> None:
    plain, kernels = (mixer_costs.Setting(True, False, 1, 1, has_kernels) for has_kernels in (False, True))
    row = mixer_costs.COSTS[GATED_DELTA]
    # Normed queries and keys of 64 channels, values and outputs of 128, and a row of a chunk's matrix for each of 4 heads.
    assert row.activations(TINY, kernels) - row.activations(TINY, plain) == 2 * 64 + 2 * 128 + 4 * 64
    assert row.recomputed(TINY, kernels) < row.recomputed(TINY, plain)


def test_parameters_of_a_rank() -> None:
    pipeline = Parallelism("cpu", 2, 1, 2, False, False)
    stages = [sum(stage_parameters(TINY, pipeline, rank)) for rank in range(2)]
    assert sum(stages) == TINY.parameters()
    split = Parallelism("cpu", 2, 2, 1, True, False)
    whole, half = (sum(layer_parameters(TINY, layout, 0)) for layout in (pipeline, split))
    # The router, the gate of the shared expert and all norms are whole on both ranks.
    replicated = 9 * TINY.hidden_size + 2 * TINY.hidden_size + 32
    assert 2 * half - whole == replicated


def test_layouts_without_the_layer_are_refused() -> None:
    problems = [str(error) for error in parallelism.check(Parallelism("cpu", 4, 4, 1, True, False), TINY, 64)]
    assert "key heads of gated delta 2 not divisible by tensor parallel size 4" in "".join(problems)
    assert "query groups of gated attention 2 not divisible by tensor parallel size 4" in "".join(problems)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((0, 1, 2, 3), "leave one for attention"),
        ((4,), "of a model of 4 layers"),
        ((1, 0), "in ascending order"),
        ((), "not numbers"),
    ],
)
def test_layers_that_a_model_cannot_have(layers: tuple[int, ...], message: str) -> None:
    assert TINY.gated_delta is not None
    with pytest.raises(BadConfig) as caught:
        dataclasses.replace(TINY, gated_delta=dataclasses.replace(TINY.gated_delta, layers=layers))
    assert message in f"{caught.value} {caught.value.hint}"
