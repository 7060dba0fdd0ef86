"""Constant factors and soft caps that a model has where others have none (Gemma, Granite).

Embeddings are multiplied behind the look-up, the outputs of attention and MLP before the residual addition, and logits are
divided and capped before anything reads them: the padding of the vocabulary, the loss, the z-loss. Folding the factors into
weights instead would not be exact, and impossible where the embedding is the output layer's weight, too.
"""

from functools import partial
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from torch import Tensor

from lt_shared.architecture import Architecture
from lt_train.models.norms import compiled

Outputs = tuple[Tensor, Tensor | None]


def multiply(model: GPTModel, architecture: Architecture) -> None:
    """Give `model` the factors and caps of `architecture`."""
    if model.pre_process and architecture.embedding_multiplier != 1:
        model.embedding.register_forward_hook(partial(_multiply_embeddings, architecture.embedding_multiplier))
    scales_or_caps = architecture.logits_scaling != 1 or architecture.final_logit_softcapping is not None
    if model.post_process and scales_or_caps:
        model.output_layer.register_forward_hook(partial(_scale_and_cap, architecture))
    for layer in model.decoder.layers:
        if architecture.attn_logit_softcapping is not None:
            layer.self_attention.core_attention.softcap = architecture.attn_logit_softcapping
        if architecture.residual_multiplier != 1:
            for module in (layer.self_attention, layer.mlp):
                module.register_forward_hook(partial(_multiply_output, architecture.residual_multiplier))


def _multiply_embeddings(factor: float, module: torch.nn.Module, inputs: Any, embeddings: Tensor) -> Tensor:
    """By the factor as the embeddings' dtype has it, as transformers does: the root of 3072 is 55.5 in bfloat16."""
    return embeddings * float(torch.tensor(factor, dtype=embeddings.dtype))


def _multiply_output(factor: float, module: torch.nn.Module, inputs: Any, outputs: Outputs) -> Outputs:
    output, bias = outputs
    return output * factor, None if bias is None else bias * factor


def _scale_and_cap(architecture: Architecture, module: torch.nn.Module, inputs: Any, outputs: Outputs) -> Outputs:
    logits, bias = outputs
    if architecture.logits_scaling != 1:
        logits = logits / architecture.logits_scaling
    if architecture.final_logit_softcapping is not None:
        logits = _Cap.apply(logits, architecture.final_logit_softcapping)  # type: ignore[no-untyped-call]
    return logits, bias


class _Cap(torch.autograd.Function):
    """c * tanh(x / c), computed in float32. Keeps its input alone: the loss overwrites its output."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, cap: float) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.cap = cap
        return compiled(_capped)(logits, cap)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (logits,) = ctx.saved_tensors
        return compiled(_capped_gradient)(logits, gradient, ctx.cap), None


def _capped(logits: Tensor, cap: float) -> Tensor:
    return (cap * torch.tanh(logits.float() / cap)).type_as(logits)


def _capped_gradient(logits: Tensor, gradient: Tensor, cap: float) -> Tensor:
    return (gradient.float() * (1 - torch.tanh(logits.float() / cap).square())).type_as(logits)
