"""A model whose layers have different mixers is planned by the layers that a rank has."""

import dataclasses
from types import SimpleNamespace

import pytest

from lt_shared.models.architecture.sizes import ATTENTION, LATENT_ATTENTION
from lt_shared.models.presets import preset
from lt_train.config.settings.memory import Recompute
from lt_train.config.settings.parallelism import Parallelism
from lt_train.planner import stage_work
from lt_train.planner.activations import Activations
from lt_train.planner.memory_estimate import MemoryEstimate
from lt_train.planner.rank_parameters import layer_parameters, stage_parameters

TINY = preset("tiny-deepseek-v2")
assert TINY.latent_attention
# Values of another width than its queries' make the two kinds of layers keep different amounts.
LATENT = dataclasses.replace(TINY, latent_attention=dataclasses.replace(TINY.latent_attention, v_head_dim=16))
PIPELINE = Parallelism("cpu", 2, 1, 2, False, False)
# Latent attention on the first rank, attention on the second.
MIXED = dataclasses.replace(LATENT)
HALF = MIXED.num_layers // 2
vars(MIXED)["mixers"] = {LATENT_ATTENTION: range(HALF), ATTENTION: range(HALF, MIXED.num_layers)}


def activations(model: object, recompute: Recompute | None = None, pipeline: Parallelism = PIPELINE) -> list[int]:
    activations = Activations(model, pipeline, recompute, 8, 64, 4, False, False, False, False)  # type: ignore[arg-type]
    return [activations.bytes_on_rank(rank) for rank in range(2)]


def test_which_layers_a_rank_has() -> None:
    assert [PIPELINE.layer_numbers(rank, 4) for rank in range(2)] == [[0, 1], [2, 3]]
    uneven = dataclasses.replace(PIPELINE, first_stage_layers=1)
    assert [uneven.layer_numbers(rank, 4) for rank in range(2)] == [[0], [1, 2, 3]]
    interleaved = dataclasses.replace(PIPELINE, interleaving=2)
    assert [interleaved.layer_numbers(rank, 8) for rank in range(2)] == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_layers_behind_the_last_have_the_kind_named_last() -> None:
    assert [MIXED.mixer(layer) for layer in range(MIXED.num_layers + 1)] == [
        *[LATENT_ATTENTION] * HALF,
        *[ATTENTION] * (HALF + 1),
    ]
    assert {mixer for mixer, _ in MIXED.layer_kinds} == {ATTENTION, LATENT_ATTENTION}


def test_parameters_and_work() -> None:
    own, others = (sum(stage_parameters(model, PIPELINE, 0)) for model in (MIXED, LATENT))
    assert own == others
    total = sum(sum(stage_parameters(MIXED, PIPELINE, rank)) for rank in range(2))
    assert total == MIXED.parameters() != LATENT.parameters()
    mixed, latent = (stage_work.model_work(model, 64, None).layers for model in (MIXED, LATENT))
    assert mixed[:HALF] == latent[:HALF]
    assert all(layer.weights != other.weights for layer, other in zip(mixed[HALF:], latent[HALF:], strict=True))


def test_what_tensor_parallel_ranks_split() -> None:
    """Every rank has the projections to latents whole, and attention has none."""
    layer, split = HALF, dataclasses.replace(PIPELINE, world_size=4, tensor=2)
    (whole, _), (half, _) = (layer_parameters(MIXED, parallel, layer) for parallel in (PIPELINE, split))
    shared = MIXED.mlp_weights(layer, 0) - (MIXED.num_experts or 0) * MIXED.hidden_size
    assert 2 * (whole - half) == MIXED.mixer_weights(layer) + shared


def test_activations() -> None:
    mixed, latent = activations(MIXED), activations(LATENT)
    assert mixed[0] == latent[0]
    assert mixed[1] != latent[1]
    # Recomputed, a rank has the activations of its largest layer at a time.
    block = Recompute("full", "block", 1, ())
    assert activations(MIXED, block)[0] == activations(LATENT, block)[0]
    assert activations(MIXED, block)[1] != activations(LATENT, block)[1]
    # Two stages each: both ranks have layers of both kinds.
    interleaved = dataclasses.replace(PIPELINE, interleaving=2)
    assert activations(MIXED, None, interleaved)[0] != activations(LATENT, None, interleaved)[0]


@pytest.mark.parametrize(
    ("name", "layers_of_ends", "ranks", "expected"),
    # Of GLM-4.5's three dense layers two are on the second rank, beside one with experts; the next ranks have none.
    [("llama3-8b", None, 8, [0, 1, 7]), ("llama3-8b", None, 1, [0]), ("glm-4.5", 1, 32, [0, 1, 2, 31])],
)
def test_which_ranks_are_estimated(name: str, layers_of_ends: int | None, ranks: int, expected: list[int]) -> None:
    """The first, the last, and of those between one for each combination of layers."""
    ends = {"first_stage_layers": layers_of_ends, "last_stage_layers": layers_of_ends}
    states = SimpleNamespace(model=preset(name), parallel=dataclasses.replace(PIPELINE, pipeline=ranks, **ends))
    assert list(MemoryEstimate(states, None)._different_ranks()) == expected  # type: ignore[arg-type]


def test_ranks_that_share_a_query_group_keep_its_key_and_value_each() -> None:
    """Two groups on two and on four ranks: the same weights in all, but twice as many keys and values."""
    model = preset("tiny")
    assert model.num_query_groups == 2
    two, four = (Parallelism("cpu", ranks, ranks, 1, False, False) for ranks in (2, 4))
    on_two, on_four = (
        Activations(model, parallel, None, 1, 64, 4, False, False, False, False)._layer_bytes_by_mixer[ATTENTION]
        for parallel in (two, four)
    )
    residual = 4 * 64 * model.hidden_size * 4
    # The projection's output has a key and a value, RoPE makes one more key.
    keys_and_values = 3 * model.kv_size * 64 * 4
    assert 4 * (on_four - residual) - 2 * (on_two - residual) == keys_and_values
    assert 4 * layer_parameters(model, four, 0)[0] - 2 * layer_parameters(model, two, 0)[0] == 2 * 2 * model.hidden_size
