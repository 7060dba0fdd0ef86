"""Token embeddings that add their gradients to the gradient buffer themselves, as linear layers do (`wgrad_accumulation`).

A table that FSDP has gathered has no gradient buffer, and gets its gradient from autograd.

For a weight that the output layer shares, megatron-core writes zeros as large as the table, sums them with the embedding's
gradient, and adds the sum to the buffer: 1.4 ms of a step of 540 of Llama 3.2 1B on an H200, by the bytes.
"""

from typing import Any

import torch
from torch import Tensor

from lt_train.kernels.embedding import add_rows
from lt_train.ops.wgrad_accumulation import mark_gradient_added


def look_up_rows(weight: Tensor, tokens: Tensor, is_tied: bool) -> Tensor:
    """Return rows [s, b, h] of `weight` [V, h] at int64 `tokens` [s, b]. `is_tied`: the output layer shares `weight`."""
    rows: Tensor = _Embedding.apply(weight, tokens, is_tied)  # type: ignore[no-untyped-call]
    return rows


def look_up_local_rows(weight: Tensor, tokens: Tensor, is_tied: bool) -> Tensor:
    """Look up `tokens`, numbered from the first local row of the table. Tokens whose rows a peer holds give zeros."""
    rows: Tensor = _SplitEmbedding.apply(weight, tokens, is_tied)  # type: ignore[no-untyped-call]
    return rows


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor, is_tied: bool) -> Tensor:
        ctx.save_for_backward(tokens)
        # With saved-tensor hooks, `saved_tensors` returns a weight without its attributes (`main_grad`).
        ctx.weight, ctx.is_tied = weight, is_tied
        return torch.nn.functional.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        (tokens,), weight = ctx.saved_tensors, ctx.weight
        is_buffered = hasattr(weight, "main_grad")
        buffer = weight.main_grad if is_buffered else torch.zeros_like(weight)
        add_rows(gradient.reshape(-1, gradient.shape[-1]), tokens.reshape(-1), buffer)
        if not is_buffered:
            return buffer, None, None
        # For a tied weight, the output layer has set the flag and returned the gradient.
        return None if ctx.is_tied else mark_gradient_added(weight), None, None


class _SplitEmbedding(_Embedding):
    """Look up local rows of a vocabulary-parallel table; tokens of other ranks give zeros."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor, is_tied: bool) -> Tensor:
        absent = (tokens < 0) | (tokens >= len(weight))
        # An index past the last row: `add_rows` ignores it.
        ctx.save_for_backward(tokens.masked_fill(absent, len(weight)))
        ctx.weight, ctx.is_tied = weight, is_tied
        return torch.nn.functional.embedding(tokens.masked_fill(absent, 0), weight).masked_fill_(absent[..., None], 0)
