"""Attention within documents, within a window and over a shared sequence is that of the formula."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from lt_train.models.mixers import core_attention as attention
from lt_train.models.mixers.core_attention import CausalAttention, sequence_share

SEQUENCE, BATCH, HEADS, GROUPS, SIZE = 48, 2, 4, 2, 8
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
# Borders differ between the two samples; one document has a single token.
DOCUMENTS = torch.tensor([[0, 20, 21, 48, 48], [0, 5, 48, 48, 48]], dtype=torch.int32)
NUMBERS = torch.tensor([[0] * 20 + [1] + [2] * 27, [0] * 5 + [1] * 43], dtype=torch.int32)


def core_attention(
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    layer_number: int = 1,
) -> CausalAttention:
    config = SimpleNamespace(
        attention_dropout=0.0,
        sequence_parallel=True,
        window_size=None if window is None else (window, 0),
        window_attn_skip_freq=2,
        softmax_type="vanilla",
        context_parallel_size=1,
    )
    made = CausalAttention(config, layer_number)  # type: ignore[arg-type]
    made.softcap = softcap
    made.softmax_offset = None if sinks is None else torch.nn.Parameter(sinks)
    return made


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(SEQUENCE, BATCH, heads, SIZE, generator=generator) for heads in (HEADS, GROUPS, GROUPS)]


def by_the_formula(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: Tensor | None,
    window: int | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """One query at a time, in float64. A sink adds to the sum of a head's weights."""
    mixed = torch.zeros(SEQUENCE, BATCH, HEADS, SIZE, dtype=torch.float64)
    for place in range(SEQUENCE):
        for sample in range(BATCH):
            seen = [
                other
                for other in range(place + 1)
                if (documents is None or NUMBERS[sample, other] == NUMBERS[sample, place])
                and (window is None or place - other <= window)
            ]
            for head in range(HEADS):
                group = head * GROUPS // HEADS
                scores = key[seen, sample, group].double() @ query[place, sample, head].double() / SIZE**0.5
                if softcap:
                    scores = softcap * (scores / softcap).tanh()
                total = scores.exp().sum() + (0 if sinks is None else sinks[head].double().exp())
                mixed[place, sample, head] = scores.exp() / total @ value[seen, sample, group].double()
    return mixed.flatten(2)


@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["whole", "documents"])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [None, 0, 7, 100])
def test_equals_the_formula(documents: Tensor | None, window: int | None, softcap: float | None) -> None:
    query, key, value = inputs()
    found = core_attention(window, softcap)(query, key, value, documents)
    expected = by_the_formula(query, key, value, documents, window, softcap)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["whole", "documents"])
@pytest.mark.parametrize("window", [None, 7])
def test_sinks_take_their_share(documents: Tensor | None, window: int | None) -> None:
    query, key, value = inputs()
    found = core_attention(window, sinks=SINKS)(query, key, value, documents)
    torch.testing.assert_close(
        found.double(), by_the_formula(query, key, value, documents, window, sinks=SINKS), atol=1e-6, rtol=0
    )


def test_every_second_layer_has_no_window() -> None:
    assert [core_attention(7, layer_number=number).window for number in (1, 2, 3, 4)] == [7, None, 7, None]


def test_a_document_does_not_notice_its_neighbours() -> None:
    """Neither its results nor its gradients: bit for bit zero where nothing is seen."""
    query, key, value = inputs()
    value.requires_grad_()
    core_attention()(query, key, value, DOCUMENTS)[21:, 0].sum().backward()
    assert value.grad is not None
    assert not value.grad[:21].any()
    assert not value.grad[:, 1].any()
    assert value.grad[21:, 0].any()


@pytest.mark.parametrize("ranks", [2, 3])
def test_shares_cover_the_sequence_and_see_equally_much(ranks: int) -> None:
    positions = torch.arange(SEQUENCE)
    shares = [sequence_share(positions, 0, rank, ranks) for rank in range(ranks)]
    assert sorted(torch.cat(shares).tolist()) == positions.tolist()
    assert len({int((share + 1).sum()) for share in shares}) == 1
    # As Megatron-LM slices a batch.
    chunks = positions.view(2 * ranks, -1)
    assert all(torch.equal(share, chunks[[rank, 2 * ranks - 1 - rank]].flatten()) for rank, share in enumerate(shares))


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_rule_for_kernels_is_that_of_the_dense_mask(ranks: int, window: int | None) -> None:
    """FlexAttention evaluates the rule for one pair at a time, the mask for all at once."""
    share = SEQUENCE // ranks
    for rank in range(ranks):
        positions = [sequence_share(torch.arange(SEQUENCE), 0, other, ranks) for other in range(ranks)]
        rule = attention._rule(NUMBERS, window, positions[rank], torch.cat(positions))
        dense = attention._mask(DOCUMENTS, window, share, rank, ranks, torch.device("cpu"))
        assert dense.shape == (BATCH, 1, share, SEQUENCE)
        assert torch.equal(create_mask(rule, BATCH, None, share, SEQUENCE, device="cpu"), dense)
        assert dense.any(-1).all()
