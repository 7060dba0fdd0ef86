"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) over torch's layers, with and without a latent of the queries.

This module replaces megatron-core's MLASelfAttention, with the same weight names, because of four faults. 0.16.1 assumes that
TransformerEngine is installed. 0.19.2 cannot be built without a latent of the queries. Both use the model's epsilon for the norms
of the latents, which in DeepSeek is 1e-6. And with tensor parallelism, both compute the gradient of the key's rotated part for
the local heads only.

The training form is computed, with keys and values for every head. Of the 192 channels of a head, 128 have no position; the 64
rotated channels of the key are shared by all heads. Adjacent channels form a RoPE pair.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from lt_shared.models.architecture import Architecture
from lt_shared.models.rope_scaling import YarnScaling
from lt_train.models import recomputation
from lt_train.models.linear import Linears, Outputs, replicated_linear
from lt_train.models.mixers import rope
from lt_train.models.mixers.core_attention import CausalAttention
from lt_train.models.norms import norm

# All DeepSeek models have this epsilon in the norms of the latents, whatever rms_norm_eps is.
LATENT_NORM_EPSILON = 1e-6


class LatentAttention(MegatronModule):  # type: ignore[misc]
    """Self attention over hidden states [sequence, batch, hidden]; returns the same shape and no bias."""

    def __init__(self, config: TransformerConfig, architecture: Architecture, linears: Linears, core_attention: CausalAttention):
        super().__init__(config=config)
        sizes = architecture.latent_attention
        assert sizes is not None
        self.sizes = sizes
        self.architecture, self.rotates = architecture, architecture.rotates(0)
        heads, hidden = architecture.num_attention_heads, architecture.hidden_size
        if sizes.q_lora_rank is None:
            self.linear_q_proj = linears.column(hidden, architecture.query_size, bias=False)
        else:
            self.linear_q_down_proj = replicated_linear(config, hidden, sizes.q_lora_rank)
            self.q_layernorm = norm(config, sizes.q_lora_rank, LATENT_NORM_EPSILON)
            self.linear_q_up_proj = linears.column(sizes.q_lora_rank, architecture.query_size, bias=False)
        self.linear_kv_down_proj = replicated_linear(config, hidden, sizes.kv_lora_rank + sizes.qk_pos_emb_head_dim)
        self.kv_layernorm = norm(config, sizes.kv_lora_rank, LATENT_NORM_EPSILON)
        self.linear_kv_up_proj = linears.column(sizes.kv_lora_rank, heads * (sizes.qk_head_dim + sizes.v_head_dim), bias=False)
        self.core_attention = core_attention
        self.linear_proj = linears.row(architecture.value_size, hidden, bias=False)
        self.temperature = rope.QueryTemperature.of(architecture)
        self.recomputes_core = recomputation.is_chosen(config, "core_attn")

    def forward(self, hidden_states: Tensor, documents: Tensor | None, angles: Tensor | None) -> Outputs:
        """Attend over `hidden_states`. `angles` is unused, because it is for whole heads; this layer computes its angles."""
        query, key, value = self._keys_values(hidden_states, self._query(hidden_states))
        if self.temperature is not None:
            query = self.temperature.scale(query, documents)
        is_recomputed = self.recomputes_core and self.training
        mixed = recomputation.compute(self.core_attention, is_recomputed, query, key, value, documents)
        return self.linear_proj(mixed)[0], None

    def _keys_values(self, hidden_states: Tensor, queries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [s, b, heads, channels] of the local heads and context-parallel chunks.

        `queries` [s, b, local heads * channels] are not rotated yet.
        """
        sizes = self.sizes
        down = self.linear_kv_down_proj(hidden_states)
        latent, rotated = torch.split(down, [sizes.kv_lora_rank, sizes.qk_pos_emb_head_dim], dim=-1)
        query = _split_last(queries, sizes.query_channels)
        up = _split_last(self.linear_kv_up_proj(self.kv_layernorm(latent))[0], sizes.qk_head_dim + sizes.v_head_dim)
        content, value = torch.split(up, [sizes.qk_head_dim, sizes.v_head_dim], dim=-1)
        rotated = self._for_all_heads(rotated)
        if not self.rotates:
            return query, _with_shared(content, rotated), value
        angles = cosines_and_sines(self.architecture, len(query), query.device, query.dtype)
        query, key = _compiled()(query, content, rotated, *angles)
        return query, key, value

    def _query(self, hidden_states: Tensor) -> Tensor:
        queries: tuple[Tensor, Any]
        if self.sizes.q_lora_rank is None:
            queries = self.linear_q_proj(hidden_states)
        else:
            queries = self.linear_q_up_proj(self.q_layernorm(self.linear_q_down_proj(hidden_states)))
        return queries[0]

    def _for_all_heads(self, rotated: Tensor) -> Tensor:
        """Return the key's rotated part for the whole sequence.

        Its gradient is summed over the ranks, which hold different heads.
        """
        across = gather_from_sequence_parallel_region if self.config.sequence_parallel else copy_to_tensor_model_parallel_region
        whole: Tensor = across(rotated)
        return whole


def _with_shared(content: Tensor, shared: Tensor) -> Tensor:
    """Return keys [s, b, heads, channels] whose last channels are those that all heads have, `shared` [s, b, channels]."""
    return torch.cat((content, shared.unsqueeze(2).expand(-1, -1, content.shape[2], -1)), dim=-1)


def _split_last(tensor: Tensor, size: int) -> Tensor:
    """Split the last axis into groups of `size`."""
    return tensor.reshape(*tensor.shape[:-1], -1, size)


def score_scale(architecture: Architecture) -> float:
    """Return the factor of the attention scores. With YaRN it includes the magnitude of queries and of keys."""
    scaling = architecture.rope_scaling
    factor = scaling.score_factor if isinstance(scaling, YarnScaling) else 1.0
    return (architecture.softmax_scale or architecture.kv_channels**-0.5) * factor


@functools.lru_cache(maxsize=4)
def cosines_and_sines(architecture: Architecture, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [length, 1, 1, pairs] for this context-parallel rank's positions, cached for all layers."""
    frequencies = rope.inverse_frequencies(architecture, length * parallel_state.get_context_parallel_world_size())
    angles = rope.local_positions(length, device)[:, None] * frequencies.to(device)
    longer = rope.magnitude(architecture.rope_scaling, architecture.max_position_embeddings)
    cosines, sines = ((longer * function(angles)).to(dtype)[:, None, None] for function in (torch.cos, torch.sin))
    return cosines, sines


@functools.cache
def _compiled() -> Callable[..., tuple[Tensor, Tensor]]:
    """Compile `_add_positions`. In eager mode its operations make 20 passes over queries and keys."""
    return torch.compile(_add_positions, dynamic=False)


def _add_positions(query: Tensor, content: Tensor, rotated: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate the last channels of `query` [s, b, heads, d], and build the keys.

    The keys are `content` [s, b, heads, d - r], different for each head, and the rotated channels `rotated` [s, b, r], shared by
    all heads.
    """
    shared = rotated.shape[-1]
    unrotated, turned = torch.split(query, [query.shape[-1] - shared, shared], dim=-1)
    query = torch.cat((unrotated, rotate_pairs(turned, cosines, sines)), dim=-1)
    key = rotate_pairs(rotated.unsqueeze(2), cosines, sines).expand(-1, -1, content.shape[2], -1)
    return query, torch.cat((content, key), dim=-1)


def rotate_pairs(channels: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate pairs of adjacent channels by their angles.

    In the result, the first channels of all pairs come before the second channels. Scores stay the same, because queries and keys
    have the same order of channels.
    """
    first, second = _split_last(channels, 2).unbind(-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)
