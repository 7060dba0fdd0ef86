"""Cross entropy over logits of 16 bits, without a copy of them in float32.

One pass over the logits forward; backward, their gradient overwrites them. For Llama 3's vocabulary and 32,768 tokens the logits
are 8.4 GB; a float32 copy and its gradient would be 34.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        rows, columns = logits.shape
        losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
        normalizers = torch.empty_like(losses)
        _forward[(rows,)](logits, labels, losses, normalizers, columns, BLOCK, num_warps=8)
        ctx.save_for_backward(logits, labels, normalizers)
        return losses

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None]:
        logits, labels, normalizers = ctx.saved_tensors
        rows, columns = logits.shape
        _backward[(rows, triton.cdiv(columns, BLOCK))](
            logits, labels, normalizers, gradients.contiguous(), columns, BLOCK, num_warps=8
        )
        return logits, None


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of every row, float32 [rows], of `logits` [rows, columns], contiguous, and `labels` int64 [rows].

    The backward pass destroys the logits.
    """
    losses: Tensor = _CrossEntropy.apply(logits, labels)  # type: ignore[no-untyped-call]
    return losses


@triton.jit
def _forward(logits, labels, losses, normalizers, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * columns
    largest = float("-inf")
    total = 0.0
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        values = tl.load(start + column, mask=column < columns, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(largest, tl.max(values))
        total = total * tl.exp(largest - higher) + tl.sum(tl.exp(values - higher))
        largest = higher
    normalizer = largest + tl.log(total)
    tl.store(normalizers + row, normalizer)
    tl.store(losses + row, normalizer - tl.load(start + tl.load(labels + row)).to(tl.float32))


@triton.jit
def _backward(logits, labels, normalizers, gradients, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(logits + row * columns + column, mask=inside).to(tl.float32)
    share = tl.exp(values - tl.load(normalizers + row))
    share = tl.where(column == tl.load(labels + row), share - 1, share)
    tl.store(logits + row * columns + column, share * tl.load(gradients + row), mask=inside)
