"""Choose a token's experts from the router's logits: top-k, softmax over the chosen logits, and the load-balancing statistics.

One kernel per direction replaces megatron-core's softmax after the top-k (Qwen3, Mixtral, gpt-oss), some 30 kernels per layer.
The largest logits are chosen, and the first among equal logits, as by torch's top-k on a GPU. The auxiliary loss needs the sum
over tokens of all experts' probabilities, and the number of tokens per expert. megatron-core chooses experts again for it, by the
probabilities, so that of two logits with equal rounded probabilities it may count the other expert. megatron-core's softmax
before the top-k and its sigmoids are not replaced: they choose by rounded numbers, which would differ from torch's in the last
bit.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements of a tile. A program takes as many rows as fit.
TILE = 2048


def choose_experts(logits: Tensor, experts_per_token: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Choose experts by `logits`, float32 [t, n].

    Returns the probabilities [t, n], zero for experts that are not chosen; the routing map, bool [t, n]; and per expert, float32
    [n], the sum over tokens of its softmax among all experts, and the number of its tokens.
    """
    chosen: tuple[Tensor, Tensor, Tensor, Tensor] = _Choice.apply(logits, experts_per_token)  # type: ignore[no-untyped-call]
    return chosen


class _Choice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, experts_per_token: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        logits = logits.contiguous()
        rows, experts = logits.shape
        height, columns = _tile(experts)
        programs = triton.cdiv(rows, height)
        probabilities, routing_map = torch.empty_like(logits), torch.empty_like(logits, dtype=torch.bool)
        parts = logits.new_empty(programs, 2, experts)
        is_chosen = routing_map.view(torch.int8)
        _forward[(programs,)](
            logits, probabilities, is_chosen, parts, rows, experts, experts_per_token, height, columns, num_warps=4
        )
        # Two separate tensors, because the caller reduces the counts in place.
        sums, counts = parts[:, 0].sum(0), parts[:, 1].sum(0)
        ctx.save_for_backward(logits, probabilities)
        ctx.mark_non_differentiable(routing_map, counts)
        # Without this line torch would write zeros for the gradients of the map and the counts.
        ctx.set_materialize_grads(False)
        return probabilities, routing_map, sums, counts

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: None, sums_gradient: Tensor | None, __: None) -> tuple[Tensor, None]:
        logits, probabilities = ctx.saved_tensors
        rows, experts = logits.shape
        gradient = torch.zeros_like(logits) if gradient is None else gradient
        sums_gradient = logits.new_zeros(experts) if sums_gradient is None else sums_gradient
        height, columns = _tile(experts)
        result = torch.empty_like(logits)
        _backward[(triton.cdiv(rows, height),)](
            gradient.contiguous(),
            sums_gradient.contiguous(),
            logits,
            probabilities,
            result,
            rows,
            experts,
            height,
            columns,
            num_warps=4,
        )
        return result, None


def _tile(experts: int) -> tuple[int, int]:
    columns = triton.next_power_of_2(experts)
    return max(1, TILE // columns), columns


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    logits, probabilities, is_chosen, parts, rows, experts, CHOSEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    program = tl.program_id(0)
    row = program * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < experts)[None, :]
    place = row[:, None].to(tl.int64) * experts + column[None, :]
    values = tl.load(logits + place, mask=inside, other=0.0)
    # NaN sorts first, as in torch, so that every row has `CHOSEN` experts in any case.
    keys = tl.where(values == values, values, float("inf"))
    numbers = tl.broadcast_to(column[None, :], [ROWS, COLUMNS])
    is_expert = numbers < experts
    is_candidate = is_expert
    for _ in range(CHOSEN):
        best = tl.max(tl.where(is_candidate, keys, float("-inf")), axis=1)
        first = tl.min(tl.where(is_candidate & (keys == best[:, None]), numbers, COLUMNS), axis=1)
        is_candidate = is_candidate & (numbers != first[:, None])
    chosen = is_expert & (is_candidate == 0)
    powers = _powers(values, is_expert)
    picked = tl.where(chosen, powers, 0.0)
    tl.store(probabilities + place, picked / tl.sum(picked, axis=1)[:, None], mask=inside)
    tl.store(is_chosen + place, chosen.to(tl.int8), mask=inside)
    scores = tl.where(inside, powers / tl.sum(powers, axis=1)[:, None], 0.0)
    part = parts + program.to(tl.int64) * 2 * experts + column
    tl.store(part, tl.sum(scores, axis=0), mask=column < experts)
    tl.store(part + experts, tl.sum((chosen & inside).to(tl.float32), axis=0), mask=column < experts)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    gradient, sums_gradient, logits, probabilities, result, rows, experts, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < experts)[None, :]
    place = row[:, None].to(tl.int64) * experts + column[None, :]
    shares = tl.load(probabilities + place, mask=inside, other=0.0)
    slopes = tl.load(gradient + place, mask=inside, other=0.0)
    logits_gradient = shares * (slopes - tl.sum(shares * slopes, axis=1)[:, None])
    values = tl.load(logits + place, mask=inside, other=0.0)
    powers = _powers(values, tl.broadcast_to(column[None, :], [ROWS, COLUMNS]) < experts)
    scores = powers / tl.sum(powers, axis=1)[:, None]
    slopes = tl.load(sums_gradient + column, mask=column < experts, other=0.0)[None, :]
    logits_gradient += scores * (slopes - tl.sum(scores * slopes, axis=1)[:, None])
    tl.store(result + place, logits_gradient, mask=inside)


@triton.jit
def _powers(values, is_expert):  # type: ignore[no-untyped-def]
    """Return e to the power of `values` minus the row's largest value; 0 outside `is_expert`."""
    top = tl.max(tl.where(is_expert, values, float("-inf")), axis=1)
    return tl.where(is_expert, tl.exp(values - top[:, None]), 0.0)
