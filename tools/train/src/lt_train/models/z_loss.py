"""The z-loss: a term that keeps the logits of the output layer from drifting, which costs precision in 16 bits."""

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region
from torch import Tensor


def add_z_loss(model: GPTModel, coefficient: float) -> None:
    """Make `model` minimise `coefficient` x log(Z)^2 beside the cross entropy, where Z normalises the softmax.

    PaLM uses 1e-4. The reported loss stays the cross entropy. log(Z) is the cross entropy plus the logit of the label, so no
    second softmax is computed; the backward pass needs memory for one more gradient of the logits.
    """
    cross_entropy = model.compute_language_model_loss

    def with_z_loss(labels: Tensor, logits: Tensor) -> Tensor:
        # megatron-core's cross entropy overwrites fp32 logits: the labels' are taken before it.
        chosen = _label_logits(labels, logits)
        losses = cross_entropy(labels, logits)
        combined: Tensor = _WithGradientOf.apply(losses, coefficient * (losses + chosen).square())  # type: ignore[no-untyped-call]
        return combined

    model.compute_language_model_loss = with_z_loss


def _label_logits(labels: Tensor, logits: Tensor) -> Tensor:
    """The logit of every label, float32 [b, s], from `labels` [b, s] and this tensor-parallel rank's `logits` [s, b, columns]."""
    columns = logits.shape[-1]
    # Contiguous: megatron-core sums a copy of other tensors, and loses the sum.
    local = labels.transpose(0, 1).contiguous() - parallel_state.get_tensor_model_parallel_rank() * columns
    here = (local >= 0) & (local < columns)
    # Indexed and not gathered: gather keeps the logits for its backward pass.
    rows = torch.arange(local.numel(), device=local.device)
    mine = logits.view(-1, columns)[rows, local.clamp(0, columns - 1).flatten()].view_as(local).float()
    # Not by multiplication: the columns of the padding hold -inf.
    chosen: Tensor = reduce_from_tensor_model_parallel_region(torch.where(here, mine, 0.0))
    return chosen.transpose(0, 1)


class _WithGradientOf(torch.autograd.Function):
    """The first tensor, with the gradient of the sum of both."""

    @staticmethod
    def forward(ctx: Any, shown: Tensor, hidden: Tensor) -> Tensor:
        return shown.view_as(shown)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient
