"""Norms: compiled on a GPU, and marked for sequence parallelism.

OLMo 2 norms queries and keys over all heads at once. A rank of tensor parallelism has some of the heads: it sums their squares
over the ranks before it divides, and uses its share of a weight that every rank has whole. So megatron-core sums the gradients
of all shares, as it does those of a norm of each head, and the weight is stored once. The price is a few kilobytes a layer.

Gemma's RMSNorm multiplies by 1 + weight: weight decay then draws the factor to one, and a bfloat16 weight near zero has more bits
than one near one. The sum is taken in float32, as transformers does; in bfloat16 it would lose what the weight has below 2^-8.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region, reduce_from_tensor_model_parallel_region
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


class SummingRMSNorm(torch.nn.RMSNorm):
    """The norm of the residual stream and what is added to it, by one kernel (`lt_train.kernels.rms_norm`)."""

    def forward(self, stream: Tensor, addend: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The normed sum and the sum of `stream` and `addend` [s, b, h]."""
        from lt_train.kernels.rms_norm import rms_norm as sum_and_norm

        assert self.eps is not None
        return sum_and_norm(stream, addend, self.weight, self.eps)


class LastRMSNorm(SummingRMSNorm):
    """The norm behind the last block, which may leave its sum to it."""

    def forward(self, stream: Tensor | tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        pair = stream if isinstance(stream, tuple) else (stream, None)
        return super().forward(*pair)[0]


def _zero_centred(x: Tensor, shape: tuple[int, ...], weight: Tensor, eps: float) -> Tensor:
    return rms_norm(x.float(), shape, 1.0 + weight.float(), eps).type_as(x)


@functools.cache
def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compiled once for all layers, a kernel for each shape."""
    return torch.compile(function, dynamic=False)


def norm(config: TransformerConfig, size: int, eps: float) -> Any:
    """An RMSNorm or LayerNorm of the last `size` channels."""
    return _marked(_kind(config), config, size, eps)


def summing_norm(config: TransformerConfig, size: int, eps: float) -> Any:
    return _marked(SummingRMSNorm, config, size, eps)


def last_norm(config: TransformerConfig, size: int, eps: float) -> Any:
    return _marked(LastRMSNorm, config, size, eps)


def _marked(kind: Any, config: TransformerConfig, size: int, eps: float) -> Any:
    """A norm marked so that sequence-parallel ranks sum the gradients of its parameters."""
    module = kind(size, eps=eps, dtype=config.params_dtype, device=torch.cuda.current_device())
    for parameter in module.parameters():
        parameter.sequence_parallel = config.sequence_parallel
    return module


def _kind(config: TransformerConfig) -> Any:
    if config.normalization != "RMSNorm":
        return CompiledLayerNorm
    return ZeroCentredRMSNorm if config.layernorm_zero_centered_gamma else CompiledRMSNorm


class AllHeadsNorm(torch.nn.Module):
    """RMSNorm of [s, b, heads, d] over all `heads` of all tensor-parallel ranks."""

    def __init__(self, config: TransformerConfig, heads: int, eps: float):
        super().__init__()
        ones = torch.ones(heads * config.kv_channels, dtype=config.params_dtype, device=torch.cuda.current_device())
        self.weight = torch.nn.Parameter(ones)
        self.eps = eps

    def forward(self, heads: Tensor) -> Tensor:
        rows = heads.flatten(2)
        own, whole = rows.shape[-1], len(self.weight)
        if own == whole:
            return compiled(rms_norm)(rows, (own,), self.weight, self.eps).view_as(heads)
        squares = reduce_from_tensor_model_parallel_region(compiled(_sum_of_squares)(rows))
        # Every rank's output depends on the sum: its gradient is the sum of theirs.
        squares = copy_to_tensor_model_parallel_region(squares)
        first = parallel_state.get_tensor_model_parallel_rank() * own
        weight = self.weight[first : first + own]
        return compiled(_scaled)(rows, squares / whole, weight, self.eps).view_as(heads)


def _sum_of_squares(rows: Tensor) -> Tensor:
    return rows.float().square().sum(-1, keepdim=True)


def _scaled(rows: Tensor, mean: Tensor, weight: Tensor, eps: float) -> Tensor:
    return (rows.float() * torch.rsqrt(mean + eps) * weight).type_as(rows)
