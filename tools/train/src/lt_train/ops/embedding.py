"""Token embeddings that add their gradients to the gradient buffer themselves, as the linear layers do (`wgrad_accumulation`).
A table that FSDP has gathered has no such buffer, and gets its gradient from autograd.

A weight that is the output layer's, too, has megatron-core write zeros as large as the table, sum them with the embedding's
gradient, and add that to the buffer: 1.4 ms of a step of 540 of Llama 3.2 1B on an H200, by the bytes.

With tensor parallelism a rank has some rows of the table. What its peers have is zero in its output, which the ranks sum.
"""

from functools import partial
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region, reduce_scatter_to_sequence_parallel_region
from torch import Tensor

from lt_train.kernels.embedding import add_rows
from lt_train.ops.wgrad_accumulation import written


def accumulate(model: GPTModel) -> None:
    """Let the embedding of `model` add its gradient to its weight's `main_grad`, or to zeros."""
    table = model.embedding.word_embeddings
    is_tied = model.post_process and model.share_embeddings_and_output_weights
    if is_tied:
        table.weight.zero_out_wgrad = False
    table.forward = partial(_embed, table, is_tied) if table.tp_group.size() == 1 else partial(_embed_split, table, is_tied)


def _embed(table: Any, is_tied: bool, tokens: Tensor) -> Tensor:
    """[b, s, h] of int64 `tokens` [b, s], in memory [s, b, h] as the layers want it."""
    rows: Tensor = _Embedding.apply(table.weight, tokens.t(), is_tied)  # type: ignore[no-untyped-call]
    return rows.transpose(0, 1)


def _embed_split(table: Any, is_tied: bool, tokens: Tensor) -> Tensor:
    """The same from all ranks' parts of the table; of sequence parallelism a rank's share [s, b, h], as megatron-core has it."""
    rows: Tensor = _SplitEmbedding.apply(  # type: ignore[no-untyped-call]
        table.weight, tokens.t() - table.vocab_start_index, is_tied
    )
    if table.reduce_scatter_embeddings:
        return reduce_scatter_to_sequence_parallel_region(rows, group=table.tp_group)  # type: ignore[no-any-return]
    return reduce_from_tensor_model_parallel_region(rows, group=table.tp_group).transpose(0, 1)  # type: ignore[no-any-return]


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
