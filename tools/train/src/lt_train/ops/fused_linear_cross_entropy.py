"""Fused linear cross entropy: output layer and loss without a pass over the logits, which are the largest tensor of a step.

A loss over logits z reads them once for log(sum(exp(z))), and reads and writes them once more for their gradient, softmax(z)
minus one at the label: 25 GB for 32,768 tokens of Llama 3. Here the epilogue of the output layer's GEMM writes E = exp(z - o) and
its row sums S (`kernels.gemm_epilogues`) instead of z. The offset o of a token is computed before the GEMM: the label's logit, a
dot product, plus `ROOM`. The loss is log(S) + `ROOM`. For a gradient g of the loss, the gradient of z is E g / S, with E - S in
place of E at the label, and E is exp(-`ROOM`) there. The two GEMMs of the backward pass therefore read E itself, with the label's
number replaced. The factor g / S multiplies their rows of h numbers, not E's rows of V numbers.

Exponentials are bfloat16, as precise as softmax's gradient in 16 bits, and more precise than logits in 16 bits. Their range holds
losses of up to 126 nats. Above 126, S and the loss are infinite and the step is skipped, even if the token is masked.

Every tensor-parallel rank holds some rows of the weight, so some columns of E. Ranks sum two numbers per token, the label's logit
before the GEMM and S after it: 0.13 MB each for 32,768 tokens. The GEMM skips the padding at the end of the vocabulary.
"""

import math
from typing import Any

import torch
from torch import Tensor

from lt_train.kernels.gemm_epilogues import LOG2E, exponential_gemm
from lt_train.kernels.row_ops import dots, scale
from lt_train.ops.row_exchange import Exchange
from lt_train.ops.wgrad_accumulation import accumulate_weight_gradient

# An exponent of two: 60 nats. A float's range is 2^-126 to 2^128. Tokens less likely than the label are represented down to 2^-40
# times the label's probability, which suffices, and more likely tokens have the remaining range.
ROOM = 86
# 126 nats. The remaining range is for the loss's gradient divided by the sum, down to 2^-30.
LARGEST_SUM = 2.0**96


def output_losses(rows: Tensor, weight: Tensor, labels: Tensor, exchange: Exchange, vocabulary: int) -> Tensor:
    """Return the loss in nats, float32 [m], for `labels`, int64 [m]. Logits are the gathered rows times the transposed weight.

    The local `rows` [..., h] and `weight` [n, h] are contiguous and bfloat16. The weights, in the order of the ranks,
    hold a row per token of the `vocabulary`, then padding. The weight's gradient is added to `main_grad` if it has one.
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
        # The label's column, if this rank holds it.
        columns = (labels - first).clamp(0, len(weight_rows) - 1)
        absent = columns != labels - first
        offsets = _sum_over_ranks(dots(rows, weight_rows, columns).masked_fill_(absent, 0), exchange).mul_(LOG2E).add_(ROOM)
        exponentials, sums = exponential_gemm(rows, weight_rows, offsets)
        # Clamp to the label's term, because the GEMM has summed the label's logit in another order than the dot product.
        sums = _sum_over_ranks(sums, exchange).clamp_(min=2.0**-ROOM)
        sums = torch.where(sums <= LARGEST_SUM, sums, math.inf * sums)
        ctx.save_for_backward(rows, weight_rows, columns, absent, exponentials, sums)
        # With saved-tensor hooks, `saved_tensors` returns a weight without its attributes (`main_grad`).
        ctx.weight, ctx.exchange = weight, exchange
        # The first form preserves the precision of small losses, the second stays finite.
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


def _sum_over_ranks(numbers: Tensor, exchange: Exchange) -> Tensor:
    """Sum `numbers` over the ranks, in place."""
    if exchange.group:
        torch.distributed.all_reduce(numbers, group=exchange.group)
    return numbers
