"""Fused linear cross entropy: output layer and loss without a pass over the logits, which are the largest tensor of a step.

A loss over logits z of a vocabulary of V reads them once for log(sum(exp(z))), and reads and writes them once more for their
gradient, softmax(z) minus one at the label: 25 GB for 32,768 tokens of Llama 3. Here the epilogue of the output layer's GEMM
writes not z but E = exp(z - o) and its row sums S (`kernels.gemm_epilogues`), with an offset o for each token, known before: the
label's logit, a dot product, plus `ROOM`. The loss is log(S) + `ROOM`. For a gradient g of the loss that of z is g / S times E,
with E - S at the label, where E is exp(-`ROOM`). So E is already, but for a factor of each row and one number in it, what the two
GEMMs of the backward pass need; the factor is applied to their rows of h numbers, not to V.

Exponentials are bfloat16, as precise as softmax's gradient in 16 bits, and more precise than logits in 16 bits. Their range holds
tokens with a loss of up to 126 nats. Beyond, S and the loss are infinite and the step is skipped, also where the token is masked.

Tensor-parallel ranks have some rows of the weight each, so some columns of E. They sum two numbers of each token, the label's
logit before the GEMM and S behind it: 0.13 MB each for 32,768 tokens. The padding of the vocabulary, at the end, is left out.
"""

import math
from typing import Any

import torch
from torch import Tensor

from lt_train.kernels.gemm_epilogues import LOG2E, exponential_gemm
from lt_train.kernels.row_ops import dots, scale
from lt_train.ops.row_exchange import Exchange
from lt_train.ops.wgrad_accumulation import accumulate_weight_gradient

# As a power of two: 60 nats. Of a float's 2^-126 to 2^128 that leaves as much for tokens less likely than the label, down to
# 2^-40 of it, as matters, and the rest for those more likely.
ROOM = 86
# 126 nats. Of what is left, a loss's gradient divided by its sum needs some, down to 2^-30.
LARGEST_SUM = 2.0**96


def output_losses(rows: Tensor, weight: Tensor, labels: Tensor, exchange: Exchange, vocabulary: int) -> Tensor:
    """The loss in nats, float32 [m], of `labels`, int64 [m], with logits of all ranks' rows times the transpose of the weight.

    This rank has `rows` [..., h] and `weight` [n, h], contiguous and bfloat16. All ranks' weights together have the rows of a
    `vocabulary`, in the order of the ranks, and padding. The weight's gradient is added to its `main_grad`, where it has one.
    """
    losses: Tensor = _FusedLinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        rows, weight, labels, exchange, vocabulary
    )
    return losses


class _FusedLinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, labels: Tensor, exchange: Exchange, vocabulary: int) -> Tensor:
        rows = exchange.gather(rows, whole=True).whole()
        first = exchange.group.rank() * len(weight) if exchange.group else 0
        weight_rows = weight[: vocabulary - first]
        # The label's column, where this rank has it.
        columns = (labels - first).clamp(0, len(weight_rows) - 1)
        absent = columns != labels - first
        offsets = _summed(dots(rows, weight_rows, columns).masked_fill_(absent, 0), exchange).mul_(LOG2E).add_(ROOM)
        exponentials, sums = exponential_gemm(rows, weight_rows, offsets)
        # The label's own term: the GEMM has summed its logit in another order.
        sums = _summed(sums, exchange).clamp_(min=2.0**-ROOM)
        sums = torch.where(sums <= LARGEST_SUM, sums, math.inf * sums)
        ctx.save_for_backward(rows, weight_rows, columns, absent, exponentials, sums)
        # A saved weight comes back without its attributes where hooks on saved tensors are in force.
        ctx.weight, ctx.exchange = weight, exchange
        # The first keeps the small losses' precision, the second is finite.
        return torch.where(sums < 1, (sums * 2.0**ROOM).log(), sums.log() + ROOM * math.log(2))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        rows, weight_rows, columns, absent, exponentials, sums = ctx.saved_tensors
        factors = gradient / sums
        label_terms = (2.0**-ROOM - sums).to(exponentials.dtype)[:, None]
        if ctx.exchange.group:
            label_terms = torch.where(absent[:, None], exponentials.gather(1, columns[:, None]), label_terms)
        exponentials.scatter_(1, columns[:, None], label_terms)

        def rows_gradient(place: slice, out: Tensor) -> None:
            torch.mm(exponentials[place], weight_rows, out=out)
            scale(out, factors[place], out)

        finish = ctx.exchange.start_sum(*rows.shape, rows, rows_gradient)
        weight_gradient = accumulate_weight_gradient(scale(rows, factors, torch.empty_like(rows)), exponentials, ctx.weight)
        return finish(), weight_gradient, None, None, None


def _summed(numbers: Tensor, exchange: Exchange) -> Tensor:
    """Over the ranks, in place."""
    if exchange.group:
        torch.distributed.all_reduce(numbers, group=exchange.group)
    return numbers
