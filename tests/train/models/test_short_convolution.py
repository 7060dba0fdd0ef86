"""Short convolutions: every layout has one rank's losses, and others are refused; costs, parameters, and lists of layers."""

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

TINY, MIXTURE = preset("tiny-lfm2"), preset("tiny-lfm2-moe")
TRAINING = ("--hidden-size", "64", *BRIEF)
DOCUMENTS = ("--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss")
SPLIT = ("--tensor-model-parallel-size", "2", "--sequence-parallel")
STAGES = ("--pipeline-model-parallel-size", "2")
DENSE, EXPERTS = ("--model", TINY.name), ("--model", MIXTURE.name)
LAYOUTS = sampled(
    {
        "dense-tp2": (*DENSE, "--tensor-model-parallel-size", "2"),
        "dense-pp2": (*DENSE, *STAGES),
        "dense-fsdp2": (*DENSE, "--ranks", "2", "--use-torch-fsdp2"),
        "dense-overlapped": (*DENSE, "--ranks", "2", "--use-distributed-optimizer", "--overlap-grad-reduce"),
        "moe-sp2": (*EXPERTS, *SPLIT),
        "moe-pp2": (*EXPERTS, *STAGES),
        "moe-ep2": (*EXPERTS, "--expert-model-parallel-size", "2", "--ranks", "2"),
        "documents-sp2": (*DENSE, *DOCUMENTS, *SPLIT),
    },
    "dense-tp2",
    "moe-ep2",
    "documents-sp2",
)
ALONE = {"dense-alone": DENSE, "moe-alone": EXPERTS, "documents-alone": (*DENSE, *DOCUMENTS)}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> dict[str, Outcome]:
    return train_variants(TRAINING, {**ALONE, **LAYOUTS}, dataset.prefix, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_losses_of_one_rank(layout: str, outcomes: dict[str, Outcome]) -> None:
    check_losses_of_one_rank(outcomes, layout, f"{layout.split('-')[0]}-alone")


def test_the_planner_counts_each_layer() -> None:
    layers = stage_work.model_work(TINY, 64, None).layers
    hidden, mlp = TINY.hidden_size, 3 * TINY.hidden_size * TINY.ffn_hidden_size
    assert [layer.weights for layer in layers[:2]] == [2 * (4 * hidden**2 + 3 * hidden + mlp)] * 2
    assert layers[0] == layers[1] == layers[3] != layers[2]


def test_parameters_of_a_rank() -> None:
    stages = [sum(stage_parameters(MIXTURE, Parallelism("cpu", 2, 1, 2, False, False), rank)) for rank in range(2)]
    # Tied embeddings are on both stages.
    assert sum(stages) == MIXTURE.parameters() + MIXTURE.vocab_size * MIXTURE.hidden_size
    whole, half = (sum(layer_parameters(TINY, Parallelism("cpu", 2, ranks, 1, False, False), 0)) for ranks in (1, 2))
    # Both norms are whole on both ranks.
    assert 2 * half - whole == 2 * TINY.hidden_size


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((0, 1, 2, 3), "leave one for attention"),
        ((4,), "of a model of 4 layers"),
        ((1, 0), "ascending order"),
        ((), "not numbers"),
    ],
)
def test_layers_that_a_model_cannot_have(layers: tuple[int, ...], message: str) -> None:
    assert TINY.short_convolution is not None
    with pytest.raises(BadConfig) as caught:
        dataclasses.replace(TINY, short_convolution=dataclasses.replace(TINY.short_convolution, layers=layers))
    assert message in f"{caught.value} {caught.value.hint}"
