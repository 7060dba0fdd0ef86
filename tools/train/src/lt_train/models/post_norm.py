"""Norms behind attention and MLP (OLMo 2, Gemma 2), and norms of queries and keys over all heads at once (OLMo 2).

megatron-core has places for neither. A norm behind is part of the linear layer that it follows, which puts its weight where
Megatron-Bridge has it: `linear_proj.post_layernorm`, `linear_fc2.post_layernorm`.

A rank of tensor parallelism has some of the heads. It sums their squares over the ranks before it divides, and uses its share of
a weight that every rank has whole: so megatron-core sums the gradients of all shares, as it does those of a norm of each head,
and the weight is stored once. The price is a few kilobytes a layer.
"""

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import (
    RowParallelLinear,
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.identity_op import IdentityOp
from torch import Tensor
from torch.nn.functional import rms_norm

from lt_shared.architecture import Architecture
from lt_train.models.norms import Norm, compiled


def place_norms(parts: Any, architecture: Architecture) -> None:
    """Put the norms of a layer with an MLP where `architecture` has them; `parts` are its submodules, with norms in front."""
    attention = parts.self_attention.submodules
    if architecture.norm_placement == "post":
        parts.input_layernorm = parts.pre_mlp_layernorm = IdentityOp
    if architecture.norm_placement != "pre":
        attention.linear_proj = _mlp(parts).linear_fc2 = NormedRowParallelLinear
    if architecture.qk_layernorm and architecture.qk_layernorm_width == "all_heads":
        attention.q_layernorm, attention.k_layernorm = QueriesNorm, KeysNorm


def _mlp(parts: Any) -> Any:
    """The submodules of the MLP, a specification or, from megatron-core 0.19 on, a partial function."""
    return parts.mlp.keywords["submodules"] if hasattr(parts.mlp, "keywords") else parts.mlp.submodules


class NormedRowParallelLinear(RowParallelLinear):  # type: ignore[misc]
    """A linear layer, and a norm of its output summed over the tensor-parallel ranks."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **settings: Any):
        super().__init__(input_size, output_size, config=config, **settings)
        self.post_layernorm = Norm(config, output_size, config.layernorm_epsilon)

    def forward(self, input_: Tensor) -> tuple[Tensor, Tensor | None]:
        output, bias = super().forward(input_)
        return self.post_layernorm(output), bias


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


class QueriesNorm(AllHeadsNorm):
    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float):
        super().__init__(config, config.num_attention_heads, eps)


class KeysNorm(AllHeadsNorm):
    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float):
        super().__init__(config, config.num_query_groups, eps)


def _sum_of_squares(rows: Tensor) -> Tensor:
    return rows.float().square().sum(-1, keepdim=True)


def _scaled(rows: Tensor, mean: Tensor, weight: Tensor, eps: float) -> Tensor:
    return (rows.float() * torch.rsqrt(mean + eps) * weight).type_as(rows)
