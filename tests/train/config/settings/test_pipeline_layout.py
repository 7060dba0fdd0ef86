"""Which pipeline stage has which layers: megatron-core's own functions say the same for Megatron's options."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import EIGHT_LAYERS, plan_of

from lt_shared.console import BadConfig, UsageError
from lt_train.config.settings import pipeline_layout
from lt_train.config.settings.parallelism import Parallelism

PP2, PP4 = ("--pipeline-model-parallel-size", "2"), ("--pipeline-model-parallel-size", "4")
LAYOUT = "--pipeline-model-parallel-layout"
EMBEDDING, LOSS = "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"
VIRTUAL, PER_STAGE = "--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage"


def layout(*options: str) -> Parallelism:
    return plan_of([*EIGHT_LAYERS, *options]).parallelism


@pytest.fixture
def layers_in_megatron(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[int]]]:
    """Return the layers of every pipeline rank, counted from 0, as megatron-core builds them without process groups."""
    from megatron.core import parallel_state
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    def layers_of_ranks(parallel: Parallelism, layers: int, **split: Any) -> list[list[int]]:
        monkeypatch.setattr(parallel_state, "_MPU_PIPELINE_MODEL_PARALLEL_WORLD_SIZE", parallel.pipeline)
        monkeypatch.setattr(parallel_state, "_VIRTUAL_PIPELINE_MODEL_PARALLEL_WORLD_SIZE", parallel.interleaving)
        config = TransformerConfig(
            num_layers=layers,
            hidden_size=64,
            num_attention_heads=4,
            pipeline_model_parallel_size=parallel.pipeline,
            pipeline_dtype="float32",
            virtual_pipeline_model_parallel_size=parallel.interleaving,
            **split,
        )
        ranks = []
        for rank in range(parallel.pipeline):
            monkeypatch.setattr(parallel_state, "_MPU_PIPELINE_MODEL_PARALLEL_RANK", rank)
            numbers: list[int] = []
            for stage in range(parallel.interleaving or 1):
                place = (None if parallel.interleaving is None else stage, rank)
                first = get_transformer_layer_offset(config, *place)
                numbers += range(first, first + get_num_layers_to_build(config, *place))
            ranks.append(numbers)
        return ranks

    return layers_of_ranks


@pytest.mark.parametrize(
    ("options", "layers", "split"),
    [
        ((*PP2, LAYOUT, "Et*3|t*5L"), 8, {"pipeline_model_parallel_layout": "Et*3|t*5L"}),
        ((*PP2, LAYOUT, "E|t*3|t*5|L"), 8, {"pipeline_model_parallel_layout": "E|t*3|t*5|L"}),
        ((*PP4, LAYOUT, "Ett|(t|)*6,L"), 8, {"pipeline_model_parallel_layout": "Ett|(t|)*6,L"}),
        (
            (*PP4, VIRTUAL, "2", EMBEDDING, LOSS, "--num-layers", "14"),
            14,
            {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True},
        ),
        ((*PP2, PER_STAGE, "3", LOSS, "--num-layers", "11"), 11, {"account_for_loss_in_pipeline_split": True}),
        ((*PP2, EMBEDDING, "--num-layers", "7"), 7, {"account_for_embedding_in_pipeline_split": True}),
        ((*PP2, VIRTUAL, "2"), 8, {}),
    ],
)
def test_ranks_have_the_layers_that_megatron_core_builds(
    options: tuple[str, ...], layers: int, split: dict[str, Any], layers_in_megatron: Callable[..., list[list[int]]]
) -> None:
    parallel = layout(*options)
    found = [parallel.layer_numbers(rank, layers) for rank in range(parallel.pipeline)]
    assert found == layers_in_megatron(parallel, layers, **split)


@pytest.mark.parametrize(
    ("model", "ranks", "options", "stage_layers"),
    [
        # The layouts of published runs.
        ("llama3.1-405b", 8, (VIRTUAL, "8", EMBEDDING, LOSS), (1, *[2] * 62, 1)),
        ("qwen3-235b-a22b", 8, (VIRTUAL, "4", EMBEDDING, LOSS), (2, *[3] * 30, 2)),
        ("deepseek-v3", 8, (LAYOUT, "Et|(tt|)*30mL"), (1, *[2] * 30, 0)),
        ("deepseek-v3", 16, (LAYOUT, "Et*3|(tt|)*29,t|mL"), None),
    ],
)
def test_published_layouts(model: str, ranks: int, options: tuple[str, ...], stage_layers: tuple[int, ...] | None) -> None:
    command = ("--model", model, "--mock-data", "--device", "cpu", "--seq-length", "64", "--global-batch-size", str(16 * ranks))
    command = (*command, "--pipeline-model-parallel-size", str(ranks), *options)
    if stage_layers is None:
        with pytest.raises(BadConfig, match="62 layers, and deepseek-v3 has 61"):
            plan_of(list(command))
        return
    parallel = plan_of(list(command)).parallelism
    assert parallel.stage_layers == stage_layers
    assert parallel.interleaving == len(stage_layers) // ranks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((LAYOUT, "Ett|tt|t*4L"), "3 stages do not divide among 2 pipeline ranks"),
        ((LAYOUT, "t*3|Et*5L"), "begin with E"),
        ((LAYOUT, "Et*3|t*5"), "end with L"),
        ((LAYOUT, "Et*3|t*4L"), "7 layers, and tiny has 8"),
        ((LAYOUT, "Et*3|t*5mL"), "1 layers of multi-token prediction, and tiny has 0"),
        ((LAYOUT, "Et*3|x*5L"), "'x' is no part of a model"),
        ((LAYOUT, "Et*3||t*4|tL"), "stage 1 .from 0. has nothing to compute"),
        ((LAYOUT, "E(t*999999|)*999999L"), "more than 100,000 layers and stages"),
        ((LAYOUT, "Et*99999999L"), "more than 100,000 layers and stages"),
        (
            (EMBEDDING, LOSS, "--num-layers", "9"),
            "9 layers with the embedding and the loss are 11, which do not divide into 2 stages",
        ),
        ((LOSS, VIRTUAL, "2"), "8 layers with the loss are 9, which do not divide into 4 stages"),
        ((EMBEDDING, PER_STAGE, "4"), "9, which do not divide into stages of 4"),
        ((*PP2, LAYOUT, "E|t*3|t*5|L", "--pipeline-schedule", "zero-bubble"), "zero-bubble interleaves no stages"),
        ((LAYOUT, "E|t*3|t*5|L", "--global-batch-size", "3"), "3 micro batches a step do not divide"),
    ],
)
def test_refused_layouts(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(BadConfig) as caught:
        layout(*PP2, "--micro-batch-size", "1", *options)
    assert re.search(message, f"{caught.value}\n{caught.value.hint}")


@pytest.mark.parametrize(
    "options",
    [
        (LAYOUT, "Et*3|t*5L", VIRTUAL, "1"),
        (LAYOUT, "Et*3|t*5L", EMBEDDING),
        (LAYOUT, "Et*3|t*5L", "--decoder-first-pipeline-num-layers", "3"),
        (LOSS, "--decoder-last-pipeline-num-layers", "3"),
    ],
)
def test_options_that_exclude_each_other(options: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="both say which stage has which layers"):
        layout(*PP2, *options)


def test_predictions_are_on_the_stage_of_the_loss() -> None:
    predicting = (*PP2, "--mtp-num-layers", "1", "--untie-embeddings-and-output-weights")
    assert layout(*predicting, LAYOUT, "Et*3|t*5mL").stage_layers == (3, 5)
    with pytest.raises(BadConfig, match="on another stage than the loss"):
        layout(*predicting, LAYOUT, "Et*3|t*3|t*2m|L")


def test_layout_in_words() -> None:
    assert layout(*PP2, LAYOUT, "Et*3|t*5L").described == "tensor 1 x pipeline 2 (3 + 5 layers) x data 1"
    virtual = layout(*PP4, VIRTUAL, "2", EMBEDDING, LOSS, "--num-layers", "14")
    assert virtual.described == "tensor 1 x pipeline 4 (2 stages each: 1 + 6 x 2 + 1 layers) x data 1"


@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=12).filter(lambda sizes: all(sizes[1:-1])),
    predictions=st.integers(0, 2),
)
def test_layout_strings_are_read_as_by_megatron_core(sizes: list[int], predictions: int) -> None:
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    text = pipeline_layout.layout_text(tuple(sizes), predictions)
    names = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}
    expected = [[part.name for part in stage] for stage in PipelineParallelLayerLayout.parse_str_to_list(text)]
    assert [[names[symbol] for symbol in stage] for stage in pipeline_layout.stages_of(text)] == expected
    if not predictions:
        assert pipeline_layout.megatron_layout(tuple(sizes)) == expected


@pytest.mark.parametrize("text", ["Ettt|(tt|)*29,m|L", "E, t*2 | (t|tt|)*2 L", "E|*3tL", "(Et|)*1t*2L"])
def test_repetitions_are_read_as_by_megatron_core(text: str) -> None:
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    symbols = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    expected = PipelineParallelLayerLayout.parse_str_to_list(text.replace(" ", ""))
    assert pipeline_layout.stages_of(text) == ["".join(symbols[part.name] for part in stage) for stage in expected]
