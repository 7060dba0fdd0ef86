"""Experts in fp8 against a loop over experts in float64, of numbers that were cast by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from lt_train.kernels import grouped_gemm_epilogues
from lt_train.models import builder
from lt_train.ops import expert_rows
from lt_train.ops.expert_mlp import DispatchedRows, Operations, Routing, Weights, expert_mlp
from lt_train.ops.fp8_gemm import Cast
from lt_train.ops.fp8_grouped_gemm import Fp8GroupedGemms
from lt_train.ops.grouped_gemm import TorchGroupedGemms

TOKENS, HIDDEN, INNER, EXPERTS, CHOSEN = 64, 48, 32, 5, 2
E4M3 = torch.float8_e4m3fn


class CastsByTorch:
    """The interpreter's rounding to fp8 is not a GPU's; torch's is."""

    @staticmethod
    def cast_rows(rows: Tensor, dtype: torch.dtype) -> Cast:
        scales = rows.float().abs().amax(-1).clamp(min=1e-12) / torch.finfo(dtype).max
        return (rows.float() / scales.unsqueeze(-1)).to(dtype), scales

    @staticmethod
    def cast_swiglu(gate_up: Tensor, probabilities: Tensor, dtype: torch.dtype) -> Cast:
        return CastsByTorch.cast_rows(expert_rows.weighted_swiglu(gate_up, probabilities, None, None), dtype)

    @staticmethod
    def cast_transposes(matrices: Tensor, scales: Tensor, dtype: torch.dtype) -> Cast:
        numbers = (matrices.float() / scales[:, None, None]).to(dtype).transpose(1, 2).contiguous()
        return numbers, scales.unsqueeze(1).expand(numbers.shape[:2]).contiguous()


OPERATIONS = Operations(Fp8GroupedGemms(TorchGroupedGemms(), CastsByTorch()), expert_rows)


def cast(rows: Tensor) -> Tensor:
    """The float64 numbers that fp8 holds with a scale for each row."""
    numbers, scales = CastsByTorch.cast_rows(rows.bfloat16(), E4M3)
    return numbers.double() * scales.double().unsqueeze(-1)


def cast_whole(matrix: Tensor) -> Tensor:
    """The same with one scale."""
    return cast(matrix.flatten()).view_as(matrix)


def rounded(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().double()


def by_hand(
    tokens: Tensor, probabilities: Tensor, chosen: Tensor, fc1: Tensor, fc2: Tensor, slope: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The output, and the gradients of the first two and of the weights."""
    total, of_tokens, of_probabilities = torch.zeros_like(tokens), torch.zeros_like(tokens), torch.zeros_like(probabilities)
    of_weights: list[list[Tensor]] = [[], []]
    for expert in range(EXPERTS):
        rows = chosen[:, expert].nonzero()[:, 0]
        probability, gradient = probabilities[rows, expert, None], slope[rows]
        gate, up = rounded(cast(tokens[rows]) @ cast(fc1[expert]).t()).chunk(2, dim=-1)
        activation = rounded(silu(gate) * up * probability)
        total.index_add_(0, rows, cast(activation) @ cast(fc2[expert]).t())
        of_activation = rounded(cast(gradient) @ cast_whole(fc2[expert]))
        share = gate.sigmoid()
        slopes = torch.cat((up * share * (1 + gate * (1 - share)), gate * share), -1) * (of_activation * probability).repeat(1, 2)
        of_probabilities[rows, expert] = (of_activation * silu(gate) * up).sum(-1)
        of_tokens.index_add_(0, rows, cast(slopes) @ cast_whole(fc1[expert]))
        of_weights[0].append(rounded(slopes).t() @ tokens[rows])
        of_weights[1].append(gradient.t() @ activation)
    return total, [of_tokens, of_probabilities, *map(torch.stack, of_weights)]


def made() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Tokens, probabilities, map and weights; the first expert has no token, and no other a multiple of 16."""
    torch.manual_seed(0)
    scores = torch.rand(TOKENS, EXPERTS)
    scores[:, 0] = -1
    chosen = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool).scatter(1, scores.topk(CHOSEN).indices, True)
    sizes = 2.0 ** torch.randint(-9, 9, (TOKENS, 1))
    return (
        (torch.randn(TOKENS, HIDDEN) * sizes).bfloat16(),
        torch.rand(TOKENS, EXPERTS) * chosen,
        chosen,
        torch.randn(EXPERTS, 2 * INNER, HIDDEN).bfloat16(),
        torch.randn(EXPERTS, HIDDEN, INNER).bfloat16(),
    )


def test_outputs_and_gradients_are_those_by_hand() -> None:
    tokens, probabilities, chosen, fc1, fc2 = made()
    slope = torch.randn_like(tokens)
    expected, gradients = by_hand(
        *(tensor.double() for tensor in (tokens, probabilities)), chosen, fc1.double(), fc2.double(), slope.double()
    )
    inputs = [tensor.requires_grad_() for tensor in (tokens, probabilities, fc1, fc2)]
    found = expert_mlp(tokens, probabilities, Routing.from_map(chosen, CHOSEN, expert_rows), Weights(fc1, fc2), OPERATIONS)
    for one, other in zip((found, *torch.autograd.grad(found, inputs, slope)), (expected, *gradients), strict=True):
        # Of the fp8 numbers, whose own errors are some 3%; the results are rounded to bf16, and those of a few ties differ.
        assert (one - other).norm() / other.norm() < 6e-3


@pytest.mark.parametrize("counts", [(7, 0, 9, 0, 1), (0, 0, 0, 0, 0)])
def test_rows_that_arrive_sorted(counts: tuple[int, ...]) -> None:
    _, _, _, fc1, fc2 = made()
    torch.manual_seed(1)
    rows, probabilities = torch.randn(sum(counts), HIDDEN).bfloat16(), torch.rand(sum(counts))
    found = expert_mlp(rows, probabilities, DispatchedRows.from_counts(torch.tensor(counts), rows), Weights(fc1, fc2), OPERATIONS)
    expert = torch.arange(EXPERTS).repeat_interleave(torch.tensor(counts))
    chosen = torch.nn.functional.one_hot(expert, EXPERTS).bool() if sum(counts) else torch.zeros(0, EXPERTS, dtype=torch.bool)
    weights = fc1.double(), fc2.double()
    expected, _ = by_hand(rows.double(), probabilities.double()[:, None].repeat(1, EXPERTS), chosen, *weights, rows.double())
    torch.testing.assert_close(found.double(), expected, rtol=3e-2, atol=3e-2 * float(expected.abs().max() if len(rows) else 0))


def test_a_model_gets_them_where_they_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With quack's weight gradients in 16 bits."""
    found: list[Tensor] = []
    monkeypatch.setattr(grouped_gemm_epilogues, "weight_gradient", lambda *tensors, adds: found.extend(tensors))
    layers: Any = SimpleNamespace(triton=True)
    chosen: Any = SimpleNamespace(experts="grouped-fp8")
    gemms = builder._expert_operations(layers, chosen).gemms
    assert isinstance(gemms, Fp8GroupedGemms)
    numbers, factors = gemms.operand(torch.full((2, 16), 3.0, dtype=torch.bfloat16))
    assert (numbers.dtype, numbers[0, 0].item(), factors.tolist()) == (E4M3, 448, [pytest.approx(3 / 448)] * 2)
    weight = torch.empty(1, 16, 16)
    gemms.weight_gradient(weight, numbers, lambda: numbers, torch.tensor([0, 2]))
    assert [tensor.shape for tensor in found] == [(2, 16), (2, 16), (2,), weight.shape]
