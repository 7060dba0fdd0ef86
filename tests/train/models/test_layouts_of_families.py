"""Families whose layers compute what Llama's do not: one rank's losses in layouts that could divide it in a wrong way."""

import json
from pathlib import Path

import pytest
import torch
from layouts import Outcome, plan_of, sampled, train_all
from running import BRIEF, BRIEF_LOSSES

from lt_shared.console import BadConfig
from lt_shared.contracts.manifest import Dataset
from lt_train.models.mixers import rope
from lt_train.models.mixers.core_attention import sequence_share

SIZES = ("--hidden-size", "64", "--ffn-hidden-size", "128", "--seq-length", "64", "--num-layers", "2")
TRAINING = (*SIZES, *BRIEF, "--vocab-size", "2051")
FAMILIES: dict[str, tuple[str, ...]] = {
    "ministral3": (),
    "hunyuan": (),
    "cohere2": ("--num-layers", "4", "--window-size", "15,0"),
    "olmo": (),
    "smollm3": ("--num-layers", "4"),
    # As many layers as ERNIE: megatron-core's tracker of auxiliary losses keeps the size of a process's first run.
    "qwen2-moe": ("--num-layers", "4"),
    "arcee": (),
    "apertus": (),
    "ernie4.5-moe": ("--num-layers", "4"),
    "mistral4": ("--num-layers", "4"),
    "starcoder2": ("--window-size", "15,0"),
}
TENSOR = ("--tensor-model-parallel-size", "2")
LAYOUTS: dict[str, tuple[str, ...]] = {
    "tp2": TENSOR,
    "sp2": (*TENSOR, "--sequence-parallel"),
    "pp2": ("--pipeline-model-parallel-size", "2"),
    "cp2": ("--context-parallel-size", "2"),
    "ep2": ("--ranks", "2", "--expert-model-parallel-size", "2"),
    "fsdp2": ("--ranks", "2", "--use-torch-fsdp2"),
}
# Ministral 3's temperature depends on the position, which context-parallel ranks share out; Hunyuan has weights behind the
# rotation that tensor-parallel ranks hold whole; Cohere's block gives one input to two column-parallel layers; OLMo's norms have
# no parameters that a rank could sum; SmolLM3 counts its layers without RoPE across stages; Qwen2-MoE's gate has weights that all
# ranks hold; ERNIE's router has biases of all experts; Arcee's MLP has one matrix where others have two; xIELU learns
# numbers of all channels; StarCoder 2 has biases
# behind sums over ranks.
TRAINED = sampled(
    {
        "ministral3": ("tp2", "pp2", "cp2"),
        "hunyuan": ("tp2", "sp2", "cp2"),
        "cohere2": ("tp2", "sp2", "pp2", "cp2"),
        "olmo": ("sp2", "pp2", "cp2", "fsdp2"),
        "smollm3": ("pp2", "cp2"),
        "qwen2-moe": ("sp2", "ep2"),
        "arcee": ("tp2",),
        "apertus": ("tp2", "sp2", "pp2"),
        "starcoder2": ("sp2",),
        "mistral4": ("sp2", "cp2"),
        "ernie4.5-moe": ("sp2", "pp2", "ep2"),
    },
    "ministral3",
)
# Documents end within the samples, and positions count from their beginnings.
DOCUMENTS = ("--reset-attention-mask", "--reset-position-ids")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def outcomes(place: Path, dataset: Dataset) -> dict[str, Outcome]:
    runs = {
        f"{family}-{run}": (f"tiny-{family}", (*FAMILIES[family], *LAYOUTS.get(run, ())))
        for family, layouts in TRAINED.items()
        for run in ("alone", *layouts)
    }
    for run in ("alone", "cp2"):
        runs[f"documents-{run}"] = ("tiny-ministral3", (*DOCUMENTS, *LAYOUTS.get(run, ())))
    commands = {name: ("--model", model, *TRAINING, *options, dataset.prefix) for name, (model, options) in runs.items()}
    return train_all(commands, place, 2)


@pytest.mark.parametrize(
    ("family", "layout"),
    [("documents", "cp2"), *((family, layout) for family, layouts in TRAINED.items() for layout in layouts)],
)
def test_every_layout_has_the_losses_of_one_rank(family: str, layout: str, outcomes: dict[str, Outcome], place: Path) -> None:
    trained, alone = outcomes[f"{family}-{layout}"], outcomes[f"{family}-alone"]
    assert trained.error is None
    assert alone.losses.keys() == BRIEF_LOSSES
    assert trained.losses == pytest.approx(alone.losses, abs=1e-5)
    # Adam's steps do not show a gradient that is too small by the number of ranks.
    assert gradient_norms(place / f"{family}-{layout}") == pytest.approx(gradient_norms(place / f"{family}-alone"), rel=1e-4)


def gradient_norms(directory: Path) -> list[float]:
    records = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [record["grad_norm"] for record in records if record["kind"] == "step"]


@pytest.mark.parametrize(("ranks", "rank"), [(1, 0), (2, 0), (2, 1)])
def test_temperatures_count_from_the_beginning_of_a_document(ranks: int, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rope.parallel_state, "get_context_parallel_world_size", lambda: ranks)
    monkeypatch.setattr(rope.parallel_state, "get_context_parallel_rank", lambda: rank)
    documents = torch.tensor([[0, 5, 12], [0, 12, 12]], dtype=torch.int32)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6], list(range(12))]).t()
    positions = positions if ranks == 1 else sequence_share(positions, 0, rank, ranks)
    factors = rope.query_temperatures(0.5, 4, documents, 12 // ranks, torch.device("cpu"))
    assert factors is not None
    torch.testing.assert_close(factors[:, :, 0, 0], 1 + 0.5 * torch.log(1 + (positions // 4).float()))
    # Up to the original positions, no query has another temperature.
    assert rope.query_temperatures(0.5, 12, documents, 12 // ranks, torch.device("cpu")) is None


def test_shards_of_weights_have_no_place_for_the_constants_of_xielu(dataset: Dataset) -> None:
    with pytest.raises(BadConfig, match="xIELU's constants are none"):
        plan_of(["--model", "tiny-apertus", *TRAINING, *LAYOUTS["fsdp2"], dataset.prefix])
