"""xIELU (arXiv:2411.13010), the activation of Apertus: a parabola for positive inputs, an exponential for negative ones.

Both have a learned factor, the softplus of a parameter, and a slope `beta` at zero. `beta` and `eps`, the largest input of the
exponential, are constants that checkpoints store, as transformers' files do.
"""

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
        return compiled(_xielu)(hidden, *alphas, self.beta, self.eps)


def _xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    positive = softplus(alpha_p) * x * x + beta * x
    negative = (torch.expm1(torch.minimum(x, eps)) - x) * (beta + softplus(alpha_n)) + beta * x
    return torch.where(x > 0, positive, negative)
