"""Sparse attention against transformers, dense attention, and megatron-core's loss of the indexer; its layouts."""

import math

import families
import pytest
import torch
from layouts import Outcome, check_losses_of_one_rank, plan_of, sampled, train_variants
from running import BRIEF

from lt_shared.console import BadConfig
from lt_shared.contracts.manifest import Dataset
from lt_shared.models.presets import preset
from lt_train.config.settings import parallelism
from lt_train.config.settings.parallelism import Parallelism
from lt_train.models.mixers import sparse_attention
from lt_train.planner import stage_work

V32, GLM = "tiny-deepseek-v32", "tiny-glm-5"
# Samples of four times the chosen tokens.
TRAINING = (*BRIEF, "--model", V32, "--seq-length", "64", "--num-layers", "2", "--mtp-num-layers", "0")
TRAINED = ("--dsa-indexer-loss-coeff", "0.5")
SPARSE_LOSS = (*TRAINED, "--dsa-indexer-use-sparse-loss")
DOCUMENTS = ("--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss")
ALL = ("--dsa-indexer-topk", "64")
LAYOUTS = sampled(
    {
        "trained-sp2": (*TRAINED, "--tensor-model-parallel-size", "2", "--sequence-parallel"),
        "trained-pp2": (*TRAINED, "--pipeline-model-parallel-size", "2"),
        "trained-ep2": (*TRAINED, "--expert-model-parallel-size", "2", "--ranks", "2"),
        "trained-overlapped": (*TRAINED, "--ranks", "2", "--use-distributed-optimizer", "--overlap-grad-reduce"),
        "frozen-overlapped": ("--ranks", "2", "--use-distributed-optimizer", "--overlap-grad-reduce"),
        "trained-recomputed": (*TRAINED, "--recompute-granularity", "selective", "--recompute-modules", "core_attn"),
        "documents-sp2": (*SPARSE_LOSS, *DOCUMENTS, "--tensor-model-parallel-size", "2", "--sequence-parallel"),
    },
    "trained-sp2",
    "documents-sp2",
    "frozen-overlapped",
)


@pytest.fixture(scope="module")
def differences(dataset: Dataset) -> dict[str, dict[str, float]]:
    short = ("--seq-length", "64", "--num-layers", "2", "--mtp-num-layers", "0", "--device", "cpu", dataset.prefix)
    return families.compare({name: ["--model", name, *short] for name in (V32, GLM)})


@pytest.mark.parametrize("name", [V32, GLM])
def test_transformers_computes_the_same(name: str, differences: dict[str, dict[str, float]]) -> None:
    assert differences[name]["logits"] < 1e-5
    assert differences[name]["gradient"] < 1e-5


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> dict[str, Outcome]:
    place = tmp_path_factory.mktemp("runs")
    runs = {
        "frozen-alone": (),
        "trained-alone": TRAINED,
        "documents-alone": (*SPARSE_LOSS, *DOCUMENTS),
        "all": ALL,
        "dense": ("--model", "tiny-deepseek-v3"),
        "documents-all": (*ALL, *DOCUMENTS),
        "documents-dense": ("--model", "tiny-deepseek-v3", *DOCUMENTS),
        **LAYOUTS,
    }
    return train_variants(TRAINING, runs, dataset.prefix, place)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_losses_of_one_rank(layout: str, outcomes: dict[str, Outcome]) -> None:
    check_losses_of_one_rank(outcomes, layout, f"{layout.partition('-')[0]}-alone")


@pytest.mark.parametrize("kind", ["", "documents-"])
def test_all_tokens_are_dense_attention(kind: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[f"{kind}all"].error is None
    assert outcomes[f"{kind}all"].losses == pytest.approx(outcomes[f"{kind}dense"].losses, abs=2e-6)


def test_a_trained_indexer_chooses_other_tokens(outcomes: dict[str, Outcome]) -> None:
    trained, frozen, dense = (outcomes[name].losses for name in ("trained-alone", "frozen-alone", "dense"))
    assert trained["step", 1] == frozen["step", 1] != dense["step", 1]
    assert max(abs(trained[key] - frozen[key]) for key in trained) > 1e-6


SAMPLES, HEADS, LENGTH, SIZE, CHOSEN = 2, 3, 12, 8, 4


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "index_queries": random(SAMPLES, LENGTH, 2, 6).requires_grad_(),
        "index_keys": random(SAMPLES, LENGTH, 6).requires_grad_(),
        "weights": random(SAMPLES, LENGTH, 2).requires_grad_(),
        "query": random(SAMPLES, HEADS, LENGTH, SIZE),
        "key": random(SAMPLES, HEADS, LENGTH, SIZE),
    }


def choose(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scores = torch.einsum("bshd,btd->bsht", tensors["index_queries"], tensors["index_keys"]).relu()
    scores = (scores * tensors["weights"].unsqueeze(-1)).sum(dim=2)
    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    chosen = scores.masked_fill(~visible, -math.inf).topk(CHOSEN, dim=-1).indices
    return scores, chosen, visible.unsqueeze(0)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_the_indexers_loss_is_a_divergence_from_attention(is_sparse: bool, tensors: dict[str, torch.Tensor]) -> None:
    scores, chosen, visible = choose(tensors)
    expected = torch.zeros(())
    for sample in range(SAMPLES):
        for token in range(LENGTH):
            seen = range(token + 1) if not is_sparse else sorted(set(chosen[sample, token].tolist()) & set(range(token + 1)))
            keys = torch.tensor(list(seen))
            attention = torch.stack(
                [
                    (tensors["key"][sample, head, keys] @ tensors["query"][sample, head, token] * 0.3).softmax(0)
                    for head in range(HEADS)
                ]
            ).mean(0)
            expected = expected + (attention * (attention.log() - scores[sample, token, keys].log_softmax(0))).sum()
    learned = (tensors["index_queries"], tensors["index_keys"], tensors["weights"])
    loss = sparse_attention.divergence(
        learned, tensors["query"], tensors["key"], chosen, visible, 0.3, is_sparse, lambda target: target
    )
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    for gradient, right in zip(torch.autograd.grad(loss, learned), torch.autograd.grad(expected, learned), strict=True):
        torch.testing.assert_close(gradient, right, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_megatron_core_has_the_same_loss(is_sparse: bool, tensors: dict[str, torch.Tensor]) -> None:
    dsa = pytest.importorskip("megatron.core.transformer.experimental_attention_variant.dsa")
    if not hasattr(dsa, "dsa_indexer_loss"):
        pytest.skip("megatron-core before 0.19 has another loss")

    class Groups:
        class tp:  # noqa: N801 (megatron-core reads this name)
            size = staticmethod(lambda: 1)

    scores, chosen, visible = choose(tensors)
    mask = torch.zeros(LENGTH, LENGTH).masked_fill(~visible[0], -math.inf)
    query, key = (tensors[name].permute(2, 0, 1, 3) for name in ("query", "key"))
    theirs = dsa.compute_dsa_indexer_loss(scores.detach().clone(), chosen, query, key, 0.3, 0.5, is_sparse, Groups, mask=mask)
    index = (tensors["index_queries"], tensors["index_keys"], tensors["weights"])
    ours = sparse_attention.divergence(
        index, tensors["query"], tensors["key"], chosen, visible, 0.3, is_sparse, lambda target: target
    )
    torch.testing.assert_close(0.5 * ours / (SAMPLES * LENGTH), theirs, atol=1e-6, rtol=1e-5)


def test_layouts_without_the_layer_are_refused() -> None:
    (problem,) = parallelism.check(Parallelism("cpu", 2, 1, 1, False, False, context=2), preset(V32), 64)
    assert isinstance(problem, BadConfig)
    assert "have sparse attention, which needs them whole" in str(problem)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "tiny-deepseek-v3", "--dsa-indexer-topk", "8"), "without sparse attention"),
        (("--model", "tiny", "--experimental-attention-variant", "dsa"), "without a latent of the queries"),
        (("--model", V32, "--dsa-indexer-head-dim", "8"), "rotates 16 of them"),
        (("--model", V32, "--attention-dropout", "0.1"), "attention dropout"),
    ],
)
def test_what_cannot_be_computed_is_refused(options: tuple[str, ...], message: str, dataset: Dataset) -> None:
    with pytest.raises(BadConfig, match=message):
        plan_of(["--device", "cpu", "--seq-length", "64", *options, dataset.prefix])


def test_scores_are_counted_once_per_pair() -> None:
    """Attention scores 16 tokens of 64 for each query, and the indexer all earlier tokens with 4 heads of 32 channels."""
    model = preset(V32)
    layer = stage_work.model_work(model, 64, None).layers[0]
    pairs = 16 * (2 * 64 - 16) / 64
    assert layer.forward == layer.weights + (model.query_size + model.value_size) * pairs + 4 * 32 * 64
