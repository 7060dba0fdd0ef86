"""Tensor-parallel linear layers. An `ops.row_exchange.Exchange` of rows surrounds their GEMMs, or overlaps with them.

The gradients of weights are added to their `main_grad`. A layer that gathers rows saves the local rows only, and gathers again in
the backward pass.
"""

from typing import Any

import torch
from torch import Tensor

from lt_train.ops.row_exchange import Exchange
from lt_train.ops.wgrad_accumulation import accumulate_weight_gradient


def column_parallel(rows: Tensor, weight: Tensor, exchange: Exchange) -> Tensor:
    """Gather the ranks' `rows` [..., k] and multiply them by the transposed local `weight` [n, k]. Returns [s, b, n]."""
    flat = rows.reshape(-1, rows.shape[-1])
    result: Tensor = _ColumnParallel.apply(flat, weight, exchange)  # type: ignore[no-untyped-call]
    return result.view(-1, *rows.shape[1:-1], len(weight))


def row_parallel(rows: Tensor, weight: Tensor, exchange: Exchange) -> Tensor:
    """Multiply `rows` [s, b, k] by the transpose of `weight` [h, k] and sum over ranks. Returns the local share, [..., h]."""
    flat = rows.reshape(-1, rows.shape[-1])
    result: Tensor = _RowParallel.apply(flat, weight, exchange)  # type: ignore[no-untyped-call]
    return result.view(-1, *rows.shape[1:-1], len(weight))


class _ColumnParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, exchange: Exchange) -> Tensor:
        rows = rows.contiguous()
        ctx.save_for_backward(rows, weight)
        # With saved-tensor hooks, `saved_tensors` returns a weight without its attributes (`main_grad`).
        ctx.weight, ctx.exchange = weight, exchange
        gathered = exchange.gather(rows, whole=False)
        output = rows.new_empty(gathered.count, len(weight))
        for place, part in gathered.parts():
            torch.mm(part, weight.t(), out=output[place])
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        gathered = ctx.exchange.gather(rows, whole=True)
        finish = ctx.exchange.start_sum(
            len(gradient), weight.shape[1], gradient, lambda place, out: torch.mm(gradient[place], weight, out=out)
        )
        weight_gradient = accumulate_weight_gradient(gathered.whole(), gradient, ctx.weight)
        return finish(), weight_gradient, None


class _RowParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, exchange: Exchange) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.weight, ctx.exchange = weight, exchange
        return exchange.sum(len(rows), len(weight), rows, lambda place, out: torch.mm(rows[place], weight.t(), out=out))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, weight = ctx.saved_tensors
        gathered = ctx.exchange.gather(gradient.contiguous(), whole=True)
        rows_gradient = torch.empty_like(rows)
        for place, part in gathered.parts():
            torch.mm(part, weight, out=rows_gradient[place])
        return rows_gradient, accumulate_weight_gradient(rows, gathered.whole(), ctx.weight), None
