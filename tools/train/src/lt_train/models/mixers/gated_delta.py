"""A gated delta layer (Gated DeltaNet, arXiv:2412.06464; Qwen3-Next): a recurrent state in place of attention over all tokens.

    queries, keys, values, gates, betas, alphas = in_proj(hidden states)
    queries, keys, values = silu(causal convolution(queries, keys, values))
    mixed = delta rule(queries, keys, values, decay exp(-exp(A_log) softplus(alpha + dt_bias)), strength sigmoid(beta))
    output = out_proj(norm(mixed) silu(gates))

Parameters have the names and checkpoint shards of megatron-core's GatedDeltaNet, but for `gated_norm`, to whose weight no model
adds 1 (megatron-core's `out_norm` does if the other norms do). Tensor-parallel ranks divide the heads, as do
context-parallel ranks between the projections.
"""

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor
from torch.nn.functional import silu, softplus

from lt_shared.models.architecture import GatedDelta
from lt_train.config.kernels import FLASH_LINEAR_KIMI
from lt_train.config.settings.layers import TORCH, TRITON
from lt_train.kernels import delta_rules
from lt_train.models import recomputation
from lt_train.models.linear import Linears, Outputs
from lt_train.models.mixers.convolution import Convolution, sharded_parameter, split_rows
from lt_train.models.mixers.core_attention import document_numbers
from lt_train.models.norms import compiled
from lt_train.ops.gated_delta_rule import gated_delta_rule
from lt_train.parallel.head_exchange import heads_of_all_tokens, local_rows, tokens_of_all_heads


class GatedDeltaNet(MegatronModule):  # type: ignore[misc]
    """Mix hidden states [s, b, h] of whole samples; needs no positions.

    `kernels` is `Kernels.delta`. flash-linear-attention computes all between the two projections. Without it, the backward pass
    computes it again, because a chunk's matrices take more memory than all other activations of the layer.
    """

    def __init__(self, config: TransformerConfig, sizes: GatedDelta, linears: Linears, kernels: str = TORCH):
        super().__init__(config=config)
        self.sizes, self.ranks, self.kernels = sizes, config.tensor_model_parallel_size, kernels
        heads = sizes.linear_num_value_heads
        # The ranks that divide the heads between the projections.
        self.shares = self.ranks * config.context_parallel_size
        keys, values, value_heads = (
            (channels // self.ranks, count // self.ranks)
            for channels, count in (
                (sizes.key_size, sizes.linear_num_key_heads),
                (sizes.value_size, heads),
                (heads, heads),
            )
        )
        self.convolved_parts = [keys, keys, values]
        self.head_parts = [value_heads]
        self.projected_parts = [*self.convolved_parts, values, value_heads, value_heads]
        self.in_proj = linears.column(config.hidden_size, sizes.projected_size, bias=False)
        self.conv1d = Convolution(config, sizes.convolved_size, sizes.linear_conv_kernel_dim, has_silu=True)
        self.dt_bias = sharded_parameter(config, heads)
        self.A_log = sharded_parameter(config, heads)
        epsilon = sizes.output_norm_epsilon or config.layernorm_epsilon
        self.gated_norm = GatedNorm(config, sizes.linear_value_head_dim, epsilon, silu)
        self.out_proj = linears.row(sizes.value_size, config.hidden_size, bias=False)

    def forward(self, hidden_states: Tensor, documents: Tensor | None, angles: Tensor | None) -> Outputs:
        """Return [s, b, h], and no bias. `documents` [b, n + 1] are document borders; `angles` is unused."""
        projected, _ = self.in_proj(hidden_states)
        projected = heads_of_all_tokens(projected, self.projected_parts)
        if self.kernels in (TRITON, TORCH):
            numbers = None if documents is None else document_numbers(documents, len(projected))
            is_recomputed = self.training and torch.is_grad_enabled()
            mixed = recomputation.compute(self._mix, is_recomputed, projected, numbers)
        else:
            mixed = self._mix_by_kernels(projected, documents)
        return self.out_proj(tokens_of_all_heads(mixed))  # type: ignore[no-any-return]

    def _mix(self, projected: Tensor, numbers: Tensor | None) -> Tensor:
        """Return [s, b, value heads x dv] for the `projected` channels [s, b, c] and the tokens' document `numbers` [b, s]."""
        sizes, heads = self.sizes, self.sizes.linear_num_value_heads // self.shares
        keys, values = sizes.key_size // self.shares, sizes.value_size // self.shares
        mixed, gates, betas, alphas = torch.split(projected, [2 * keys + values, values, heads, heads], dim=-1)
        mixed = self.conv1d(mixed, None if numbers is None else numbers.t(), self.convolved_parts)
        query, key, value = torch.split(mixed.transpose(0, 1), [keys, keys, values], dim=-1)
        query, key = (part.reshape(*part.shape[:2], -1, sizes.linear_key_head_dim) for part in (query, key))
        value = value.reshape(*value.shape[:2], -1, sizes.linear_value_head_dim)
        rates = (local_rows(vector, self.head_parts) for vector in (self.A_log, self.dt_bias))
        strength, log_decay = compiled(_gates)(betas.transpose(0, 1), alphas.transpose(0, 1), *rates)
        strength = 2 * strength if sizes.doubles_strength else strength
        outputs = gated_delta_rule(query, key, value, log_decay, strength, numbers, by_triton=self.kernels == TRITON)
        return self.gated_norm(outputs.transpose(0, 1), gates)  # type: ignore[no-any-return]

    def _mix_by_kernels(self, projected: Tensor, documents: Tensor | None) -> Tensor:
        """Return as `_mix`. The kernels keep their inputs for the backward pass, and compute the chunks' states again."""
        sizes, heads = self.sizes, self.sizes.linear_num_value_heads // self.shares
        keys, values = sizes.key_size // self.shares, sizes.value_size // self.shares
        borders = None if documents is None else delta_rules.borders_of_all_samples(documents, len(projected))
        *channels, gates, betas, alphas = torch.split(projected, [keys, keys, values, values, heads, heads], dim=-1)
        # Three convolutions write three tensors; one would write a tensor that the rule has to copy apart.
        weights = torch.split(local_rows(self.conv1d.weight, self.convolved_parts), [keys, keys, values])
        query, key, value = (
            delta_rules.convolve(delta_rules.in_samples(part, borders), weight, borders)
            for part, weight in zip(channels, weights, strict=True)
        )
        query, key = (part.reshape(*part.shape[:2], -1, sizes.linear_key_head_dim) for part in (query, key))
        outputs = delta_rules.gated_delta(
            query,
            key,
            value.reshape(*value.shape[:2], -1, sizes.linear_value_head_dim),
            delta_rules.in_samples(alphas, borders),
            delta_rules.in_samples(betas, borders),
            local_rows(self.A_log, self.head_parts),
            local_rows(self.dt_bias, self.head_parts),
            sizes.doubles_strength,
            borders,
            self.kernels == FLASH_LINEAR_KIMI,
        )
        outputs = outputs.reshape(projected.shape[1], len(projected), heads, -1)
        return self.gated_norm(outputs.transpose(0, 1), gates)  # type: ignore[no-any-return]

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the sharded state of megatron-core's checkpoints: a tensor per part of the projection and the convolution."""
        state: dict[str, Any] = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        vectors = {"dt_bias": self.dt_bias, "A_log": self.A_log}
        state |= make_sharded_tensors_for_checkpoint(vectors, prefix, dict.fromkeys(vectors, 0), sharded_offsets)
        sizes, heads = self.sizes, self.sizes.linear_num_value_heads
        convolved = {"query": sizes.key_size, "key": sizes.key_size, "value": sizes.value_size}
        projected = convolved | {"z": sizes.value_size, "beta": heads, "alpha": heads}
        for name, parts in {"in_proj.weight": projected, "conv1d.weight": convolved}.items():
            local_rows = {part: size // self.ranks for part, size in parts.items()}
            state[prefix + name] = split_rows(state[prefix + name], local_rows)
        return state


class GatedNorm(torch.nn.Module):
    """RMSNorm of single heads, times the `activation` of a gate per channel."""

    def __init__(self, config: TransformerConfig, size: int, eps: float, activation: Callable[[Tensor], Tensor]):
        super().__init__()
        self.eps, self.activation = eps, activation
        self.weight = torch.nn.Parameter(torch.ones(size, dtype=config.params_dtype, device=torch.cuda.current_device()))

    def forward(self, heads: Tensor, gates: Tensor) -> Tensor:
        """Return [s, b, heads x d] for `heads` [s, b, heads, d] and `gates` [s, b, heads x d]."""
        # Ranks have different heads, so the gradient of the weight is summed over them.
        weight = copy_to_tensor_model_parallel_region(self.weight)
        return compiled(_gated_norm)(heads, gates, weight, self.eps, self.activation)


def _gates(betas: Tensor, alphas: Tensor, log_rates: Tensor, biases: Tensor) -> tuple[Tensor, Tensor]:
    """Return float32 strengths and logarithms of the decays [b, s, value heads]."""
    return betas.float().sigmoid(), -log_rates.float().exp() * softplus(alphas.float() + biases.float())


def _gated_norm(heads: Tensor, gates: Tensor, weight: Tensor, eps: float, activation: Callable[[Tensor], Tensor]) -> Tensor:
    wide = heads.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
    return normed.flatten(-2).mul(activation(gates.float())).to(gates.dtype)
