"""Token embeddings that add their gradients to the gradient buffer themselves, as the linear layers do (`wgrad_accumulation`).
A table that FSDP has gathered has no such buffer, and gets its gradient from autograd.

A weight that is the output layer's, too, has megatron-core write zeros as large as the table, sum them with the embedding's
gradient, and add that to the buffer: 1.4 ms of a step of 540 of Llama 3.2 1B on an H200, by the bytes.
"""

from typing import Any

import torch
from torch import Tensor

from lt_train.kernels.embedding import add_rows
from lt_train.ops.wgrad_accumulation import written


def rows_of(weight: Tensor, tokens: Tensor, is_tied: bool) -> Tensor:
    """Rows [s, b, h] of `weight` [V, h] at int64 `tokens` [s, b]. `is_tied`: the output layer multiplies by `weight`, too."""
    rows: Tensor = _Embedding.apply(weight, tokens, is_tied)  # type: ignore[no-untyped-call]
    return rows


def own_rows_of(weight: Tensor, tokens: Tensor, is_tied: bool) -> Tensor:
    """Look up `tokens`, counted from the first local row of the table. Tokens whose rows a peer holds give zeros."""
    rows: Tensor = _SplitEmbedding.apply(weight, tokens, is_tied)  # type: ignore[no-untyped-call]
    return rows


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor, is_tied: bool) -> Tensor:
        ctx.save_for_backward(tokens)
        # A saved weight comes back without its attributes where hooks on saved tensors are in force.
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
        # Of a tied weight the output layer has said so, and has given the gradient.
        return None if ctx.is_tied else written(weight), None, None


class _SplitEmbedding(_Embedding):
    """Of tokens counted from the first of this rank's rows; those that it does not have are zero."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor, is_tied: bool) -> Tensor:
        absent = (tokens < 0) | (tokens >= len(weight))
        # Behind the last row: no gradient is added there.
        ctx.save_for_backward(tokens.masked_fill(absent, len(weight)))
        ctx.weight, ctx.is_tied = weight, is_tied
        return torch.nn.functional.embedding(tokens.masked_fill(absent, 0), weight).masked_fill_(absent[..., None], 0)
