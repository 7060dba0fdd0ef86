"""Norms of the torch layers: compiled on a GPU, and marked for sequence parallelism, which megatron-core's local norm refuses.

Gemma's RMSNorm multiplies by 1 + weight: weight decay then draws the factor to one, and a bfloat16 weight near zero has more bits
than one near one. The sum is taken in float32, as transformers does; in bfloat16 it would lose what the weight has below 2^-8.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.transformer import TransformerConfig
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm


class CompiledRMSNorm(torch.nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return compiled(rms_norm)(x, self.normalized_shape, self.weight, self.eps)


class ZeroCentredRMSNorm(torch.nn.RMSNorm):
    """RMSNorm times 1 + weight."""

    def forward(self, x: Tensor) -> Tensor:
        return compiled(_zero_centred)(x, self.normalized_shape, self.weight, self.eps)


class CompiledLayerNorm(torch.nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return compiled(layer_norm)(input, self.normalized_shape, self.weight, self.bias, self.eps)


def _zero_centred(x: Tensor, shape: tuple[int, ...], weight: Tensor, eps: float) -> Tensor:
    return rms_norm(x.float(), shape, 1.0 + weight.float(), eps).type_as(x)


@functools.cache
def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compiled once for all layers, a kernel for each shape."""
    return torch.compile(function, dynamic=False)


class Norm:
    """Builds an RMSNorm or LayerNorm, marked so that megatron-core sums its gradient over sequence-parallel ranks.

    A class, because megatron-core takes a function in a layer specification for the finished module.
    """

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> Any:
        module = _kind(config)(hidden_size, eps=eps, dtype=config.params_dtype, device=torch.cuda.current_device())
        for parameter in module.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return module


def _kind(config: TransformerConfig) -> Any:
    if config.normalization != "RMSNorm":
        return CompiledLayerNorm
    return ZeroCentredRMSNorm if config.layernorm_zero_centered_gamma else CompiledRMSNorm
