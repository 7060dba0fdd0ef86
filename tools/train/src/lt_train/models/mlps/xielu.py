"""xIELU (arXiv:2411.13010), the activation of Apertus: a parabola for positive inputs, an exponential for negative ones.

Both have a learned factor, the softplus of a parameter, and a slope `beta` at zero. `beta` and `eps`, the largest input of the
exponential, are constants that checkpoints store, as transformers' files do.
"""

from typing import Any

import torch
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region
from megatron.core.transformer import TransformerConfig
from torch import Tensor
from torch.nn.functional import softplus

from lt_shared.models.architecture.mlps import XIELU_NUMBERS
from lt_train.models.norms import compiled


class XIELU(torch.nn.Module):
    """The activation of a layer. Its parameters `alpha_p` and `alpha_n` [1] are whole on every tensor-parallel rank."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        options = {"dtype": config.params_dtype, "device": torch.cuda.current_device()}
        self.alpha_p, self.alpha_n = (
            torch.nn.Parameter(torch.full((1,), XIELU_NUMBERS[name], **options)) for name in ("alpha_p", "alpha_n")
        )
        self.beta, self.eps = (torch.nn.Buffer(torch.full((), XIELU_NUMBERS[name], **options)) for name in ("beta", "eps"))

    def forward(self, hidden: Tensor, bias: Tensor | None) -> Tensor:
        """Return the activation of `hidden` [.., local width]."""
        hidden = hidden if bias is None else hidden + bias
        # Every rank has other channels, so the backward pass sums the gradients of the parameters over the ranks.
        alphas = (copy_to_tensor_model_parallel_region(alpha) for alpha in (self.alpha_p, self.alpha_n))
        output: Tensor = _Function.apply(hidden, *alphas, self.beta, self.eps)  # type: ignore[no-untyped-call]
        return output


class _Function(torch.autograd.Function):
    """It saves its input alone; autograd would save four tensors of that size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
        ctx.save_for_backward(x, alpha_p, alpha_n, beta, eps)
        return compiled(_xielu)(x, alpha_p, alpha_n, beta, eps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients: Any = compiled(_gradients)
        return (*gradients(gradient, *ctx.saved_tensors), None, None)


def _xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    positive = softplus(alpha_p) * x * x + beta * x
    negative = (torch.expm1(torch.minimum(x, eps)) - x) * (beta + softplus(alpha_n)) + beta * x
    return torch.where(x > 0, positive, negative)


def _gradients(
    gradient: Tensor, x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the input and of both parameters, which are summed in float32."""
    is_positive = x > 0
    exponential = torch.exp(x) * (x < eps)
    slope = torch.where(is_positive, 2 * softplus(alpha_p) * x, (exponential - 1) * (beta + softplus(alpha_n))) + beta
    by_factor = gradient * torch.where(is_positive, x * x, torch.expm1(torch.minimum(x, eps)) - x)
    sums = (torch.where(mask, by_factor, 0.0).sum(dtype=torch.float32) for mask in (is_positive, ~is_positive))
    of_alphas = [(total * alpha.float().sigmoid()).type_as(alpha) for total, alpha in zip(sums, (alpha_p, alpha_n), strict=True)]
    return gradient * slope, of_alphas[0], of_alphas[1]
