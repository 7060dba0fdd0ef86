"""A loss of a layer, attached to the layer's output: the output stays, and its gradient triggers the gradient of the loss.

The loss is scaled as megatron-core scales the auxiliary loss of routers: by the loss scale, and divided by the micro batches.
"""

from typing import Any

import torch
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from torch import Tensor


class _AttachedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (loss,) = ctx.saved_tensors
        scale = MoEAuxLossAutoScaler.main_loss_backward_scale
        return gradient, torch.ones_like(loss) * (1.0 if scale is None else scale.to(loss).reshape(()))


def attach_loss(output: Tensor, loss: Tensor) -> Tensor:
    """Return `output`, any shape, whose backward pass adds the gradient of the scalar `loss`.

    The scale is set for models with experts, which all models with such a loss have.
    """
    attached: Tensor = _AttachedLoss.apply(output, loss)  # type: ignore[no-untyped-call]
    return attached
