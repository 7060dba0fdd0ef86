"""Self attention: queries, keys and values of grouped heads, rotated, mixed, and projected back.

It covers all variants except latent attention (`mixers/latent_attention.py`): norms of queries and keys, per head or over all
heads, before or behind the rotation; biases; RoPE in every channel or in some, with a separate base in layers with a window
(Gemma 3, OLMo 3); a temperature of queries that grows with the position (Ministral 3). The core attention handles windows, sinks
and soft caps (`mixers/core_attention.py`, `mixers/flash_attention.py`).

The weights have megatron-core's names: `linear_qkv` [groups x (heads per group + 2) x d, h], with the queries of a group before
its key and value, and `linear_proj` [h, heads x d]. With output gates (Qwen3-Next), the gates of a group lie between its queries
and its key. If there are more tensor-parallel ranks than groups, the ranks that share a group exchange the output of `linear_qkv`
(`lt_train.parallel.query_groups`).
"""

import functools
from typing import Any

import torch
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from lt_shared.models.architecture import Architecture
from lt_train.models import recomputation
from lt_train.models.linear import Input, Linears, Outputs
from lt_train.models.mixers import rope
from lt_train.models.mixers.core_attention import CausalAttention
from lt_train.models.norms import AllHeadsNorm, compiled, norm
from lt_train.parallel import query_groups
from lt_train.parallel.ddp import wait_for_weights


class Attention(MegatronModule):  # type: ignore[misc]
    """The self attention in a block.

    `local_angles` replace the angles of the model in this layer; without `rotates`, it uses none. `rotates_by_kernel`: one kernel
    splits, normalizes and rotates.
    `groups` is the number of local query groups, each with `group_heads` local heads. `shared_heads` counts the heads of a group
    that several ranks share; it is None if a rank has whole groups.
    """

    def __init__(
        self,
        config: TransformerConfig,
        architecture: Architecture,
        linears: Linears,
        core_attention: CausalAttention,
        local_angles: rope.Angles | None,
        rotates: bool,
        rotates_by_kernel: bool,
    ):
        super().__init__(config=config)
        heads, groups = architecture.num_attention_heads, architecture.num_query_groups
        ranks = config.tensor_model_parallel_size
        self.head_size = architecture.kv_channels
        self.groups = max(1, groups // ranks)
        self.group_heads = heads // ranks // self.groups
        self.shared_heads = heads // groups if ranks > groups else None
        self.local_angles, self.rotates, self.rotates_by_kernel = local_angles, rotates, rotates_by_kernel
        self.magnitude = rope.rotated_magnitude(architecture)
        self.limit = architecture.clip_qkv
        self.normalizes_rotated = architecture.qk_layernorm_after_rope
        self.temperature = rope.QueryTemperature.of(architecture)
        self.recomputes_core = recomputation.is_chosen(config, "core_attn")
        self.has_output_gate = architecture.attention_output_gate
        # The order of the submodules determines the order in megatron-core's gradient buffers and optimizer states.
        self.core_attention = core_attention
        self.linear_proj = linears.row(
            heads * self.head_size,
            config.hidden_size,
            bias=config.add_bias_linear,
            source=Input.ACTIVATION if self.recomputes_core or self.has_output_gate else Input.SAVED,
            norm_behind=architecture.norm_placement != "pre",
        )
        outputs = (heads * (2 if self.has_output_gate else 1) + 2 * groups) * self.head_size
        self.linear_qkv = linears.column(config.hidden_size, outputs, bias=config.add_bias_linear or config.add_qkv_bias)
        self.q_layernorm, self.k_layernorm = None, None
        if architecture.qk_layernorm:
            self.q_layernorm, self.k_layernorm = (self._norm(architecture, count) for count in (heads, groups))

    def _norm(self, architecture: Architecture, heads: int) -> torch.nn.Module:
        epsilon = self.config.layernorm_epsilon
        if architecture.qk_layernorm_width == "all_heads":
            return AllHeadsNorm(self.config, heads, epsilon)
        return norm(self.config, self.head_size, epsilon)  # type: ignore[no-any-return]

    def forward(self, hidden_states: Tensor, documents: Tensor | None, angles: Tensor | None) -> Outputs:
        """Attend over `hidden_states` [s, b, h]. `angles` [s, 1, 1, channels] are the model's, `documents` is for the core."""
        mixed, _ = self.linear_qkv(hidden_states)
        if self.shared_heads is not None:
            mixed = query_groups.gather_group(mixed, self.shared_heads, self.head_size)
        gates = None
        if self.has_output_gate:
            mixed, gates = self._split_off_gates(mixed)
        if self.limit is not None:
            mixed = mixed.clamp(-self.limit, self.limit)
        query, key, value = self._heads(mixed, angles)
        if self.temperature is not None:
            query = self.temperature.scale(query, documents)
        is_recomputed = self.recomputes_core and self.training
        mixed = recomputation.compute(self.core_attention, is_recomputed, query, key, value, documents)
        if gates is not None:
            mixed = compiled(_gate)(mixed, gates)
        return self.linear_proj(mixed)  # type: ignore[no-any-return]

    def _split_off_gates(self, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of queries, keys and values as without gates, and the gates [s, b, heads x d]."""
        queries = self.group_heads * self.head_size
        of_groups = mixed.view(*mixed.shape[:-1], self.groups, -1)
        query, gates, both = torch.split(of_groups, [queries, queries, 2 * self.head_size], dim=-1)
        return torch.cat((query, both), dim=-1).flatten(-2), gates.flatten(-2)

    def _heads(self, mixed: Tensor, angles: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the local queries [s, b, heads, d], keys and values [s, b, groups, d]."""
        if not self.rotates:
            angles = None
        elif angles is not None and self.local_angles is not None:
            angles = self.local_angles(len(mixed))
        if self.rotates_by_kernel and angles is not None:
            return self._heads_by_kernel(mixed, angles)
        query, key, value = self._split(mixed)
        if not self.normalizes_rotated:
            query, key = self._normalize(query, key)
        if angles is not None:
            query, key = (compiled(rope.rotate)(heads, angles, self.magnitude) for heads in (query, key))
        return (*self._normalize(query, key), value) if self.normalizes_rotated else (query, key, value)

    def _normalize(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        if self.q_layernorm is None or self.k_layernorm is None:
            return query, key
        return self.q_layernorm(query), self.k_layernorm(key)

    def _split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        channels = [self.group_heads * self.head_size, self.head_size, self.head_size]
        query, key, value = torch.split(mixed.view(*mixed.shape[:-1], self.groups, sum(channels)), channels, dim=-1)
        return query.reshape(*query.shape[:2], -1, self.head_size), key, value

    def _heads_by_kernel(self, mixed: Tensor, angles: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Imported here, because an installation without a GPU need not have Triton.
        from lt_train.kernels.rotary import HeadNorms, split_and_rotate

        norms = None
        query: Any = self.q_layernorm
        key: Any = self.k_layernorm
        if query is not None and key is not None and not self.normalizes_rotated:
            wait_for_weights(query, key)
            norms = HeadNorms(query.weight, key.weight, query.eps)
        heads: tuple[Tensor, Tensor, Tensor] = split_and_rotate(
            mixed, *_cosines_and_sines(angles), self.groups, self.head_size, norms
        )
        return (*self._normalize(*heads[:2]), heads[2]) if self.normalizes_rotated else heads


def _gate(mixed: Tensor, gates: Tensor) -> Tensor:
    return mixed * gates.sigmoid()


@functools.lru_cache(maxsize=2)
def _cosines_and_sines(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Return float32 cosines and sines [s, channels / 2] for `angles` [s, 1, 1, channels].

    The cache has two entries, because layers with a window may have other angles than the model.
    """
    half = angles[:, 0, 0, : angles.shape[-1] // 2].float()
    return half.cos().contiguous(), half.sin().contiguous()
