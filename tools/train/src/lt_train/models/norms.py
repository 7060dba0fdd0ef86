"""RMSNorm and LayerNorm, compiled on a GPU and marked for sequence parallelism."""

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
    """RMSNorm times 1 + weight (Gemma).

    Weight decay draws this factor to one, and a bfloat16 weight has more bits near zero than near one.
    """

    def forward(self, x: Tensor) -> Tensor:
        return compiled(_zero_centred)(x, self.normalized_shape, self.weight, self.eps)


class CompiledLayerNorm(torch.nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return compiled(layer_norm)(input, self.normalized_shape, self.weight, self.bias, self.eps)


class ZeroCentredLayerNorm(torch.nn.LayerNorm):
    """LayerNorm times 1 + weight (Nemotron)."""

    def forward(self, input: Tensor) -> Tensor:
        return compiled(_zero_centred_layer_norm)(input, self.normalized_shape, self.weight, self.bias, self.eps)


class SummingRMSNorm(torch.nn.RMSNorm):
    """Add to the residual stream and normalize the sum in one kernel (`lt_train.kernels.rms_norm`)."""

    def forward(self, stream: Tensor, addend: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return the normalized sum of `stream` and `addend` [s, b, h], and the sum itself."""
        from lt_train.kernels.rms_norm import rms_norm as sum_and_norm

        assert self.eps is not None
        return sum_and_norm(stream, addend, self.weight, self.eps)


class LastRMSNorm(SummingRMSNorm):
    """The norm after the last block. If the block returns a pair of tensors, this norm adds them."""

    def forward(self, stream: Tensor | tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        pair = stream if isinstance(stream, tuple) else (stream, None)
        return super().forward(*pair)[0]


def _zero_centred(x: Tensor, shape: tuple[int, ...], weight: Tensor, eps: float) -> Tensor:
    # 1 + weight in float32, as in transformers: bfloat16 would lose the bits of the weight below 2^-8.
    return rms_norm(x.float(), shape, 1.0 + weight.float(), eps).type_as(x)


def _zero_centred_layer_norm(x: Tensor, shape: tuple[int, ...], weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return layer_norm(x.float(), shape, 1.0 + weight.float(), bias.float(), eps).type_as(x)


@functools.cache
def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile `function` once for all layers, with one kernel per shape."""
    return torch.compile(function, dynamic=False)


def norm(config: TransformerConfig, size: int, eps: float, parameters: str = "weight_and_bias") -> Any:
    """Build the RMSNorm or LayerNorm of the last `size` channels that `config` asks for. LayerNorm has the `parameters`."""
    options = {} if parameters == "weight_and_bias" else {"elementwise_affine": parameters == "weight", "bias": False}
    return _build(functools.partial(_norm_class(config), **options), config, size, eps)


def summing_norm(config: TransformerConfig, size: int, eps: float) -> Any:
    return _build(SummingRMSNorm, config, size, eps)


def last_norm(config: TransformerConfig, size: int, eps: float) -> Any:
    return _build(LastRMSNorm, config, size, eps)


def _build(kind: Any, config: TransformerConfig, size: int, eps: float) -> Any:
    """Build a norm, marked so that sequence-parallel ranks sum the gradients of its parameters."""
    module = kind(size, eps=eps, dtype=config.params_dtype, device=torch.cuda.current_device())
    for parameter in module.parameters():
        parameter.sequence_parallel = config.sequence_parallel
    return module


def _norm_class(config: TransformerConfig) -> Any:
    if config.normalization != "RMSNorm":
        return ZeroCentredLayerNorm if config.layernorm_zero_centered_gamma else CompiledLayerNorm
    return ZeroCentredRMSNorm if config.layernorm_zero_centered_gamma else CompiledRMSNorm


class AllHeadsNorm(torch.nn.Module):
    """RMSNorm of [s, b, heads, d] over the heads on every tensor-parallel rank at once (OLMo 2).

    Each rank holds the whole weight and uses its part. Therefore megatron-core sums the gradients over the ranks, as for a norm
    of single heads, and checkpoints store the weight once. The whole weight costs a few kilobytes per layer.
    """

    def __init__(self, config: TransformerConfig, heads: int, eps: float):
        super().__init__()
        ones = torch.ones(heads * config.kv_channels, dtype=config.params_dtype, device=torch.cuda.current_device())
        self.weight = torch.nn.Parameter(ones)
        self.eps = eps

    def forward(self, heads: Tensor) -> Tensor:
        rows = heads.flatten(2)
        local_size, global_size = rows.shape[-1], len(self.weight)
        if local_size == global_size:
            return compiled(rms_norm)(rows, (local_size,), self.weight, self.eps).view_as(heads)
        squares = reduce_from_tensor_model_parallel_region(compiled(_sum_of_squares)(rows))
        # Every rank's output depends on `squares`, so the backward pass must sum the gradient of `squares` over the ranks.
        squares = copy_to_tensor_model_parallel_region(squares)
        rank, ranks = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()
        # Ranks that share a key (`lt_train.parallel.query_groups`) have each added its squares.
        copies = ranks * local_size // global_size
        first = rank // copies * local_size
        weight = self.weight[first : first + local_size]
        return compiled(_scale)(rows, squares / (copies * global_size), weight, self.eps).view_as(heads)


def _sum_of_squares(rows: Tensor) -> Tensor:
    return rows.float().square().sum(-1, keepdim=True)


def _scale(rows: Tensor, mean: Tensor, weight: Tensor, eps: float) -> Tensor:
    return (rows.float() * torch.rsqrt(mean + eps) * weight).type_as(rows)
