"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) over torch's layers, with and without a latent of the queries.

A module of our own in place of megatron-core's MLASelfAttention, under the same names of weights: that of 0.16.1 believes
TransformerEngine to be there when it is not, that of 0.19.2 cannot be built without a latent of the queries, both put the model's
epsilon into the latents' norms where DeepSeek has 1e-6, and with tensor parallelism both leave the gradient of the key's rotated
part on each rank for its own heads alone. Projections down to a latent are whole on every tensor-parallel rank (as
TransformerEngine's): they are 2% of V3's weights of attention, and the latents need not be gathered.

What is computed is the form for training, with keys and values of every head. Of a head of 192 channels, 128 have no position;
the 64 rotated ones of the key are the same for all heads. Adjacent channels are a pair of RoPE.
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
from lt_train.models.linear import Linears, Outputs
from lt_train.models.mixers import rope
from lt_train.models.mixers.core_attention import CausalAttention
from lt_train.models.norms import norm

# Of the latents' norms in all of DeepSeek's models, whatever rms_norm_eps is.
LATENT_NORM_EPSILON = 1e-6


class LatentAttention(MegatronModule):  # type: ignore[misc]
    """Self attention over hidden states [sequence, batch, hidden]; returns the same shape and no bias."""

    def __init__(self, config: TransformerConfig, architecture: Architecture, linears: Linears, core_attention: CausalAttention):
        super().__init__(config=config)
        sizes = architecture.latent_attention
        assert sizes is not None
        self.sizes = sizes
        self.architecture = architecture
        heads, hidden = architecture.num_attention_heads, architecture.hidden_size
        if sizes.q_lora_rank is None:
            self.linear_q_proj = linears.column(hidden, architecture.query_size, bias=False)
        else:
            self.linear_q_down_proj = _replicated(config, hidden, sizes.q_lora_rank)
            self.q_layernorm = norm(config, sizes.q_lora_rank, LATENT_NORM_EPSILON)
            self.linear_q_up_proj = linears.column(sizes.q_lora_rank, architecture.query_size, bias=False)
        self.linear_kv_down_proj = _replicated(config, hidden, sizes.kv_lora_rank + sizes.qk_pos_emb_head_dim)
        self.kv_layernorm = norm(config, sizes.kv_lora_rank, LATENT_NORM_EPSILON)
        self.linear_kv_up_proj = linears.column(sizes.kv_lora_rank, heads * (sizes.qk_head_dim + sizes.v_head_dim), bias=False)
        self.core_attention = core_attention
        self.linear_proj = linears.row(architecture.value_size, hidden, bias=False)
        self.recomputes_core = recomputation.is_chosen(config, "core_attn")

    def forward(self, hidden_states: Tensor, documents: Tensor | None, angles: Tensor | None) -> Outputs:
        """The model's `angles` are for whole heads: this layer has its own."""
        query, key, value = self._queries_keys_values(hidden_states)
        is_recomputed = self.recomputes_core and self.training
        mixed = recomputation.compute(self.core_attention, is_recomputed, query, key, value, documents)
        return self.linear_proj(mixed)[0], None

    def _queries_keys_values(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of this rank's heads, over the whole sequence of the context-parallel rank: [s, b, heads, channels]."""
        sizes = self.sizes
        down = self.linear_kv_down_proj(hidden_states)
        latent, rotated = torch.split(down, [sizes.kv_lora_rank, sizes.qk_pos_emb_head_dim], dim=-1)
        query = _split_last(self._query(hidden_states), sizes.query_channels)
        up = _split_last(self.linear_kv_up_proj(self.kv_layernorm(latent))[0], sizes.qk_head_dim + sizes.v_head_dim)
        content, value = torch.split(up, [sizes.qk_head_dim, sizes.v_head_dim], dim=-1)
        angles = _cosines_and_sines(self.architecture, len(query), query.device, query.dtype)
        query, key = _compiled()(query, content, self._for_all_heads(rotated), *angles)
        return query, key, value

    def _query(self, hidden_states: Tensor) -> Tensor:
        queries: tuple[Tensor, Any]
        if self.sizes.q_lora_rank is None:
            queries = self.linear_q_proj(hidden_states)
        else:
            queries = self.linear_q_up_proj(self.q_layernorm(self.linear_q_down_proj(hidden_states)))
        return queries[0]

    def _for_all_heads(self, rotated: Tensor) -> Tensor:
        """The whole sequence of the key's rotated part; its gradient is the sum over the ranks, each of which has other heads."""
        across = gather_from_sequence_parallel_region if self.config.sequence_parallel else copy_to_tensor_model_parallel_region
        whole: Tensor = across(rotated)
        return whole


def _replicated(config: TransformerConfig, inputs: int, outputs: int) -> torch.nn.Linear:
    """A linear layer that all tensor-parallel ranks have whole; they sum its gradient where each has a part of the sequence."""
    layer = torch.nn.Linear(inputs, outputs, bias=False, dtype=config.params_dtype, device=torch.cuda.current_device())
    layer.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return layer


def _split_last(tensor: Tensor, size: int) -> Tensor:
    """The last axis as groups of `size`."""
    return tensor.reshape(*tensor.shape[:-1], -1, size)


def score_scale(architecture: Architecture) -> float:
    """What scores are multiplied by. YaRN's factor counts once for queries, once for keys; without a scaling there is none."""
    scaling = architecture.rope_scaling
    factor = scaling.score_factor if isinstance(scaling, YarnScaling) else 1.0
    return (architecture.softmax_scale or architecture.kv_channels**-0.5) * factor


@functools.lru_cache(maxsize=4)
def _cosines_and_sines(
    architecture: Architecture, length: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Of the angles of this context-parallel rank's positions, [length, 1, 1, pairs]; all layers need the same ones."""
    frequencies = rope.inverse_frequencies(architecture, length * parallel_state.get_context_parallel_world_size())
    angles = rope.own_positions(length, device)[:, None] * frequencies.to(device)
    longer = rope.magnitude(architecture.rope_scaling, architecture.max_position_embeddings)
    return tuple((longer * each(angles)).to(dtype)[:, None, None] for each in (torch.cos, torch.sin))  # type: ignore[return-value]


@functools.cache
def _compiled() -> Callable[..., tuple[Tensor, Tensor]]:
    """`_with_positions`; one by one its operations pass over queries and keys 20 times."""
    return torch.compile(_with_positions, dynamic=False)


def _with_positions(query: Tensor, content: Tensor, rotated: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor]:
    """Queries [s, b, heads, d] with their last channels rotated, and keys of `content` [s, b, heads, d - r], each head's own, and
    `rotated` [s, b, r], which all share."""
    shared = rotated.shape[-1]
    own, turned = torch.split(query, [query.shape[-1] - shared, shared], dim=-1)
    query = torch.cat((own, _rotated(turned, cosines, sines)), dim=-1)
    key = _rotated(rotated.unsqueeze(2), cosines, sines).expand(-1, -1, content.shape[2], -1)
    return query, torch.cat((content, key), dim=-1)


def _rotated(channels: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Pairs of adjacent channels turned by their angles. The pairs' first channels come first in the result: queries and keys are
    in the same order, and scores do not depend on it."""
    first, second = _split_last(channels, 2).unbind(-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)
