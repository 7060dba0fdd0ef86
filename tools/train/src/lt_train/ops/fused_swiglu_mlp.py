"""An MLP with SwiGLU in the epilogues of its GEMMs, by `kernels.gemm_epilogues`.

The MLP is six GEMMs: neither SwiGLU nor its backward pass costs a pass over memory. Only the second weight's gradient needs the
activation. It can be saved, or recomputed by a GEMM of the backward pass that reads gate and up in any case. The activation takes
0.94 GB per layer for Llama 3 8B's width and 32,768 tokens.

A tensor-parallel rank has a part of the inner width. The exchange of rows surrounds the GEMMs, or overlaps with them: see
`ops.row_exchange`. A rank saves its local rows only, not the gathered ones.
"""

from typing import Any

import torch
from torch import Tensor

from lt_train.kernels.gemm_epilogues import gated_gemm, gated_gemm_gradient
from lt_train.ops.row_exchange import Exchange
from lt_train.ops.wgrad_accumulation import accumulate_weight_gradient


def gated_mlp(rows: Tensor, fc1: Tensor, fc2: Tensor, exchange: Exchange, *, keeps_activation: bool) -> Tensor:
    """Compute the MLP of `rows` [..., h] in bfloat16 with the local weights `fc1` [2 n, h], gates first, and `fc2` [h, n].

    The weights' gradients are added to `main_grad` if the weights have one.
    """
    flat = rows.reshape(-1, rows.shape[-1])
    result: Tensor = _GatedMLP.apply(flat, fc1, fc2, exchange, keeps_activation)  # type: ignore[no-untyped-call]
    return result.view(rows.shape)


class _GatedMLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, fc1: Tensor, fc2: Tensor, exchange: Exchange, keeps_activation: bool) -> Tensor:
        rows = rows.contiguous()
        gathered = exchange.gather(rows, whole=False)
        gate_up = rows.new_empty(gathered.count, fc1.shape[0])
        activation = rows.new_empty(gathered.count, fc2.shape[1])
        for place, part in gathered.parts():
            gated_gemm(part, fc1, gate_up[place], activation[place])
        ctx.save_for_backward(rows, fc1, fc2, gate_up, activation if keeps_activation else None)
        # With saved-tensor hooks, `saved_tensors` returns a weight without its attributes (`main_grad`).
        ctx.weights, ctx.exchange = (fc1, fc2), exchange
        return exchange.sum(len(gate_up), len(fc2), rows, lambda place, out: torch.mm(activation[place], fc2.t(), out=out))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        rows, fc1, fc2, gate_up, activation = ctx.saved_tensors
        exchange: Exchange = ctx.exchange
        gathered = exchange.gather(gradient.contiguous(), whole=True)
        gate_up_gradient = torch.empty_like(gate_up)
        recomputes = activation is None
        if activation is None:
            activation = gate_up.new_empty(len(gate_up), fc2.shape[1])
        for place, part in gathered.parts():
            gated_gemm_gradient(part, fc2, gate_up[place], gate_up_gradient[place], activation[place] if recomputes else None)
        inputs = exchange.gather(rows, whole=True)
        fc2_gradient = accumulate_weight_gradient(activation, gathered.whole(), ctx.weights[1])
        finish = exchange.start_sum(
            len(gate_up), fc1.shape[1], rows, lambda place, out: torch.mm(gate_up_gradient[place], fc1, out=out)
        )
        fc1_gradient = accumulate_weight_gradient(inputs.whole(), gate_up_gradient, ctx.weights[0])
        return finish(), fc1_gradient, fc2_gradient, None, None
