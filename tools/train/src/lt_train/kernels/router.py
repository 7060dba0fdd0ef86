"""From a router's logits to its experts: top-k, softmax over the chosen, and what balances the load, in one pass each way.

Of megatron-core it is the softmax after the top-k (Qwen3, Mixtral, gpt-oss), some 30 kernels a layer. The best logits are chosen,
and of equal ones the first, as torch's top-k does on a GPU. The auxiliary loss needs the sum over tokens of all experts'
probabilities and how many tokens an expert got; megatron-core chooses for it a second time, by the probabilities, so that two
logits whose probabilities are rounded to one number may count for the other expert there. A softmax before the top-k and sigmoids
stay with megatron-core: they choose by rounded numbers, and these differ in the last bit from torch's.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# The elements of a program's tile, which takes as many rows as fit.
TILE = 2048


def choose_experts(logits: Tensor, experts_per_token: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For `logits` float32 [t, n]: probabilities [t, n], zeros but for the chosen; which were, bool [t, n]; and for each expert
    the sum over tokens of its softmax among all, and how many tokens it got, both float32 [n]."""
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
        # Separate tensors, because the counts are reduced in place.
        sums, counts = parts[:, 0].sum(0), parts[:, 1].sum(0)
        ctx.save_for_backward(logits, probabilities)
        ctx.mark_non_differentiable(routing_map, counts)
        # No zeros for the map's and the counts'.
        ctx.set_materialize_grads(False)
        return probabilities, routing_map, sums, counts

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: None, of_sums: Tensor | None, __: None) -> tuple[Tensor, None]:
        logits, probabilities = ctx.saved_tensors
        rows, experts = logits.shape
        gradient = torch.zeros_like(logits) if gradient is None else gradient
        of_sums = logits.new_zeros(experts) if of_sums is None else of_sums
        height, columns = _tile(experts)
        result = torch.empty_like(logits)
        _backward[(triton.cdiv(rows, height),)](
            gradient.contiguous(),
            of_sums.contiguous(),
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
    # NaN sorts first, as in torch, so that every row has its experts in any case.
    keys = tl.where(values == values, values, float("inf"))
    numbers = tl.broadcast_to(column[None, :], [ROWS, COLUMNS])
    is_expert = numbers < experts
    is_left = is_expert
    for _ in range(CHOSEN):
        best = tl.max(tl.where(is_left, keys, float("-inf")), axis=1)
        first = tl.min(tl.where(is_left & (keys == best[:, None]), numbers, COLUMNS), axis=1)
        is_left = is_left & (numbers != first[:, None])
    chosen = is_expert & (is_left == 0)
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
    gradient, of_sums, logits, probabilities, result, rows, experts, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < experts)[None, :]
    place = row[:, None].to(tl.int64) * experts + column[None, :]
    shares = tl.load(probabilities + place, mask=inside, other=0.0)
    slopes = tl.load(gradient + place, mask=inside, other=0.0)
    of_logits = shares * (slopes - tl.sum(shares * slopes, axis=1)[:, None])
    values = tl.load(logits + place, mask=inside, other=0.0)
    powers = _powers(values, tl.broadcast_to(column[None, :], [ROWS, COLUMNS]) < experts)
    scores = powers / tl.sum(powers, axis=1)[:, None]
    slopes = tl.load(of_sums + column, mask=column < experts, other=0.0)[None, :]
    of_logits += scores * (slopes - tl.sum(scores * slopes, axis=1)[:, None])
    tl.store(result + place, of_logits, mask=inside)


@triton.jit
def _powers(values, is_expert):  # type: ignore[no-untyped-def]
    """Return the powers of e, relative to the largest value of every row."""
    top = tl.max(tl.where(is_expert, values, float("-inf")), axis=1)
    return tl.where(is_expert, tl.exp(values - top[:, None]), 0.0)
