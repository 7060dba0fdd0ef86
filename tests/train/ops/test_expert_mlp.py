"""Grouped experts against a loop over experts and tokens, with the borders that routing has in the worst cases."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from lt_train.kernels import expert_rows as by_triton
from lt_train.ops import expert_rows
from lt_train.ops.expert_mlp import DispatchedRows, Operations, Routing, RowOperations, Weights, expert_mlp
from lt_train.ops.grouped_gemm import TorchGroupedGemms

TOKENS, HIDDEN, INNER, EXPERTS, CHOSEN = 12, 8, 6, 5, 2
OPERATIONS = Operations(TorchGroupedGemms(), expert_rows)


def maps() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(TOKENS, EXPERTS, generator=generator)
    empty = scores.clone()
    empty[:, 0] = empty[:, 3] = -1
    same = torch.arange(EXPERTS).expand(TOKENS, EXPERTS).float()
    return {
        name: torch.zeros_like(each, dtype=torch.bool).scatter(1, each.topk(CHOSEN).indices, True)
        for name, each in {"mixed": scores, "experts without tokens": empty, "all to the same": same}.items()
    }


def loop(tokens: Tensor, probabilities: Tensor, chosen: Tensor, weights: Weights) -> Tensor:
    total = torch.zeros_like(tokens)
    for expert in range(EXPERTS):
        gate, up = (tokens @ weights.fc1[expert].t()).chunk(2, dim=-1)
        output = (silu(gate) * up) @ weights.fc2[expert].t()
        total = total + output * probabilities[:, expert, None] * chosen[:, expert, None]
    return total


@pytest.mark.parametrize("case", maps())
def test_output_and_gradients(case: str) -> None:
    torch.manual_seed(1)
    chosen = maps()[case]
    probabilities = (torch.rand(TOKENS, EXPERTS) * chosen).requires_grad_()
    tokens = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    weights = Weights(
        torch.randn(EXPERTS, 2 * INNER, HIDDEN, requires_grad=True), torch.randn(EXPERTS, HIDDEN, INNER, requires_grad=True)
    )
    inputs = (tokens, probabilities, weights.fc1, weights.fc2)
    routing = Routing.from_map(chosen, CHOSEN, expert_rows)
    found = expert_mlp(tokens, probabilities, routing, weights, OPERATIONS)
    expected = loop(tokens, probabilities, chosen, weights)
    torch.testing.assert_close(found, expected)
    slope = torch.randn_like(found)
    for gradient, wanted in zip(
        torch.autograd.grad(found, inputs, slope), torch.autograd.grad(expected, inputs, slope), strict=True
    ):
        torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("operations", [by_triton, expert_rows])
@pytest.mark.parametrize("case", maps())
def test_rows_of_a_routing(case: str, operations: RowOperations) -> None:
    chosen = maps()[case]
    routing = Routing.from_map(chosen, CHOSEN, operations)
    pairs = [(expert, token) for expert in range(EXPERTS) for token in range(TOKENS) if chosen[token, expert]]
    assert list(zip(routing.experts.tolist(), routing.tokens.tolist(), strict=True)) == pairs
    # As the kernels read it.
    assert routing.experts.is_contiguous()
    counts = chosen.sum(0).tolist()
    assert routing.borders.tolist() == [sum(counts[:number]) for number in range(EXPERTS + 1)]
    for token, rows in enumerate(routing.rows.tolist()):
        assert [pairs[row][1] for row in rows] == [token] * CHOSEN and rows == sorted(rows)


@pytest.mark.parametrize("operations", [by_triton, expert_rows])
@pytest.mark.parametrize("case", maps())
def test_parts_of_the_experts_add_up(case: str, operations: RowOperations) -> None:
    """Of experts on two ranks, a token has from no row to all of its rows on each."""
    torch.manual_seed(3)
    chosen = maps()[case]
    probabilities, tokens = torch.rand(TOKENS, EXPERTS) * chosen, torch.randn(TOKENS, HIDDEN)
    weights = Weights(torch.randn(EXPERTS, 2 * INNER, HIDDEN), torch.randn(EXPERTS, HIDDEN, INNER))
    total = torch.zeros_like(tokens)
    for first, end in ((0, 2), (2, EXPERTS)):
        own = chosen[:, first:end]
        routing = Routing.from_partial_map(own, CHOSEN, operations, lambda count: lambda: int(count))
        pairs = [(expert, token) for expert in range(end - first) for token in range(TOKENS) if own[token, expert]]
        assert list(zip(routing.experts.tolist(), routing.tokens.tolist(), strict=True)) == pairs
        assert routing.borders[-1] == len(pairs)
        for token, rows in enumerate(routing.rows.tolist()):
            own_rows = [row for row, (_, other) in enumerate(pairs) if other == token]
            assert rows == own_rows + [-1] * (CHOSEN - len(own_rows))
        part = Weights(weights.fc1[first:end], weights.fc2[first:end])
        total += expert_mlp(tokens, probabilities[:, first:end], routing, part, OPERATIONS)
    torch.testing.assert_close(total, loop(tokens, probabilities, chosen, weights))


def test_rows_that_arrive_sorted() -> None:
    torch.manual_seed(2)
    counts = torch.tensor([3, 0, 4, 0, 1])
    rows, probabilities = torch.randn(8, HIDDEN), torch.rand(8)
    weights = Weights(torch.randn(EXPERTS, 2 * INNER, HIDDEN), torch.randn(EXPERTS, HIDDEN, INNER))
    arrived = DispatchedRows.from_counts(counts, rows)
    assert arrived.experts.tolist() == [0, 0, 0, 2, 2, 2, 2, 4]
    found = expert_mlp(rows, probabilities, arrived, weights, OPERATIONS)
    for row, expert in enumerate(arrived.experts.tolist()):
        gate, up = (weights.fc1[expert] @ rows[row]).chunk(2)
        torch.testing.assert_close(found[row], weights.fc2[expert] @ (silu(gate) * up) * probabilities[row])
    none = expert_mlp(rows[:0], probabilities[:0], DispatchedRows.from_counts(counts * 0, rows[:0]), weights, OPERATIONS)
    assert none.shape == (0, HIDDEN)
