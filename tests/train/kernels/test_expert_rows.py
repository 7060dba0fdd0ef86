"""The order of experts' rows, their weighted SwiGLU, its gradient and the sum of rows, against loops and torch's autograd."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from lt_train.kernels import expert_rows as by_triton
from lt_train.ops import expert_rows as by_torch
from lt_train.ops.expert_mlp import RowOperations

ROWS, GROUPS = 7, 3


def gpt_oss(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


@pytest.mark.parametrize("operations", [by_triton, by_torch])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize("width", [192, 1027])
@pytest.mark.parametrize("biased", [False, True])
def test_output_and_gradients(operations: RowOperations, dtype: torch.dtype, tolerance: float, width: int, biased: bool) -> None:
    torch.manual_seed(0)
    gate_up = (4 * torch.randn(ROWS, 2 * width)).to(dtype).requires_grad_()
    probabilities = torch.rand(ROWS, requires_grad=True)
    bias = torch.randn(GROUPS, 2 * width, dtype=dtype) if biased else None
    group = torch.arange(ROWS) * GROUPS // ROWS
    slope = torch.randn(ROWS, width, dtype=dtype)
    whole = gate_up.float() if bias is None else gate_up.float() + bias[group].float()
    gate, up = whole.chunk(2, dim=-1)
    expected = (silu(gate) * up if bias is None else gpt_oss(gate, up)) * probabilities[:, None]
    expected_gradients = torch.autograd.grad(expected, (gate_up, probabilities), slope.float())
    arguments = gate_up.detach(), probabilities.detach(), bias, group
    output = operations.weighted_swiglu(*arguments)
    *gradients, again = operations.weighted_swiglu_gradient(slope, *arguments)
    for found, wanted in zip((output, again, *gradients), (expected, expected, *expected_gradients), strict=True):
        torch.testing.assert_close(found.float(), wanted.detach().float(), atol=tolerance * 4, rtol=tolerance)


@pytest.mark.parametrize("operations", [by_triton, by_torch])
def test_rows_are_summed_in_float32(operations: RowOperations) -> None:
    rows = torch.tensor([[1.0], [256.0], [-256.0]], dtype=torch.bfloat16).expand(3, 1030).contiguous()
    chosen = torch.tensor([[0, 1, 2], [1, 0, 0]], dtype=torch.int32)
    found = operations.sum_rows(rows, chosen)
    # 256 + 1 is not a bfloat16 number, but the sum of all three is.
    assert found[:, 0].tolist() == [1.0, 258.0]
    assert found.dtype == rows.dtype and (found == found[:, :1]).all()


@pytest.mark.parametrize("operations", [by_triton, by_torch])
def test_a_negative_number_is_no_row(operations: RowOperations) -> None:
    rows = torch.tensor([[1.0], [2.0], [float("inf")]]).expand(3, 1030).contiguous()
    chosen = torch.tensor([[1, 0, -1], [0, -1, -1], [-1, -1, -1]], dtype=torch.int32)
    found = operations.sum_rows(rows, chosen)
    assert found.unique(dim=1).tolist() == [[3.0], [1.0], [0.0]]
    assert operations.sum_rows(rows[:0], chosen[2:]).tolist() == [[0.0] * 1030]


@pytest.mark.parametrize("operations", [by_triton, by_torch])
@pytest.mark.parametrize(("tokens", "experts"), [(530, 5), (70, 130), (3, 1)])
def test_rows_are_sorted_by_expert(operations: RowOperations, tokens: int, experts: int) -> None:
    """Of more tokens than a program takes, each with up to as many experts as there are places."""
    torch.manual_seed(0)
    routing_map = torch.rand(tokens, experts) < 0.5 / experts
    routing_map[torch.arange(tokens), torch.randint(0, experts, (tokens,))] = torch.rand(tokens) < 0.8
    most = int(routing_map.sum(1).max()) + 1
    pairs = routing_map.t().nonzero().tolist()
    borders, known = operations.count_rows(routing_map)
    token, expert, rows = operations.order_rows(routing_map, most, known)
    assert borders.tolist() == [sum(place < first for place, _ in pairs) for first in range(experts + 1)]
    assert list(map(list, zip(expert[: len(pairs)].tolist(), token[: len(pairs)].tolist(), strict=True))) == pairs
    expected: list[list[int]] = [[] for _ in range(tokens)]
    for number, (_, of) in enumerate(pairs):
        expected[of].append(number)
    assert rows.tolist() == [line + [-1] * (most - len(line)) for line in expected]
    numbers = torch.randn(tokens, 8 if tokens > 100 else 1030).bfloat16()
    assert torch.equal(operations.spread_rows(numbers, rows, token[: len(pairs)]), numbers[[of for _, of in pairs]])
    assert torch.equal(operations.spread_rows(numbers[:, 0], rows, token[: len(pairs)]), numbers[[of for _, of in pairs], 0])


@pytest.mark.parametrize("operations", [by_triton, by_torch])
def test_no_tokens_have_no_rows(operations: RowOperations) -> None:
    none = torch.zeros(0, 3, dtype=torch.bool)
    borders, known = operations.count_rows(none)
    token, expert, rows = operations.order_rows(none, 2, known)
    assert borders.tolist() == [0] * 4 and rows.shape == (0, 2)
    assert operations.spread_rows(torch.empty(0, 8), rows, token).shape == (0, 8) and expert.shape == (0,)
