"""OLMo 1: LayerNorm without parameters. OLMo 2 and OLMo 3: norms behind attention and MLP, and norms of queries and keys over all
heads. OLMoE has the latter alone. OLMo Hybrid is OLMo 2 with gated delta in three of four layers, and without rotation.
"""

import dataclasses

from lt_shared.models.architecture import Architecture, GatedDelta
from lt_shared.models.presets.dense import TINY, llama
from lt_shared.models.presets.qwen3_next import delta_layers
from lt_shared.models.rope_scaling import YarnScaling


def _olmo2(name: str, layers: int, hidden: int, ffn: int, heads: int, groups: int) -> Architecture:
    return _of_olmo(llama(name, layers, hidden, ffn, heads, groups, 100352, 4096))


def _olmo3(name: str, layers: int, hidden: int, ffn: int, heads: int, groups: int) -> Architecture:
    model = _of_olmo(llama(name, layers, hidden, ffn, heads, groups, 100278, 65536))
    return _windowed(model, 4096, YarnScaling(8.0, 8192, attention_factor=1.2079441541679836))


def _olmo1(model: Architecture, limit: float | None = None) -> Architecture:
    return dataclasses.replace(model, normalization="LayerNorm", layernorm_parameters="none", clip_qkv=limit)


def _of_olmo(model: Architecture) -> Architecture:
    return dataclasses.replace(
        model,
        norm_epsilon=1e-6,
        rotary_base=500000.0,
        qk_layernorm=True,
        qk_layernorm_width="all_heads",
        norm_placement="post",
    )


def _windowed(model: Architecture, window: int, scaling: YarnScaling) -> Architecture:
    """Every fourth layer sees all, and only those have the scaling."""
    return dataclasses.replace(
        model, sliding_window=window, window_attn_skip_freq=4, rope_scaling=scaling, local_rotary_base=model.rotary_base
    )


def _olmoe(base: Architecture, experts: int, chosen: int) -> Architecture:
    return dataclasses.replace(
        base,
        qk_layernorm=True,
        qk_layernorm_width="all_heads",
        num_experts=experts,
        moe_router_topk=chosen,
        moe_router_pre_softmax=True,
        moe_aux_loss_coeff=0.01,
    )


_TINY_OLMO2 = dataclasses.replace(_of_olmo(TINY), name="tiny-olmo2", num_query_groups=4, tie_embeddings=False)


def _hybrid(model: Architecture, delta: GatedDelta) -> Architecture:
    delta = dataclasses.replace(delta, doubles_strength=True, output_norm_epsilon=1e-5)
    return dataclasses.replace(
        model,
        norm_epsilon=1e-6,
        tie_embeddings=False,
        norm_placement="post",
        qk_layernorm=True,
        qk_layernorm_width="all_heads",
        no_rope_freq=1,
        gated_delta=delta,
    )


OLMO = (
    _olmo1(dataclasses.replace(TINY, name="tiny-olmo"), 8.0),
    dataclasses.replace(_olmo1(llama("olmo-1b", 16, 2048, 8192, 16, 16, 50304, 2048)), tie_embeddings=True),
    _olmo1(llama("olmo-7b", 32, 4096, 11008, 32, 32, 50304, 2048)),
    _olmo1(llama("olmo-7b-0724", 32, 4096, 11008, 32, 32, 50304, 4096), 8.0),
    _TINY_OLMO2,
    _windowed(dataclasses.replace(_TINY_OLMO2, name="tiny-olmo3", num_query_groups=2), 256, YarnScaling(8.0, 128)),
    _olmo2("olmo2-1b", 16, 2048, 8192, 16, 16),
    _olmo2("olmo2-7b", 32, 4096, 11008, 32, 32),
    _olmo2("olmo2-13b", 40, 5120, 13824, 40, 40),
    _olmo2("olmo2-32b", 64, 5120, 27648, 40, 8),
    _olmo3("olmo3-7b", 32, 4096, 11008, 32, 32),
    _olmo3("olmo3-32b", 64, 5120, 27648, 40, 8),
    _hybrid(
        dataclasses.replace(TINY, name="tiny-olmo-hybrid", num_query_groups=4),
        GatedDelta(delta_layers(4), 4, 4, linear_key_head_dim=24, linear_value_head_dim=48),
    ),
    _hybrid(
        llama("olmo-hybrid-7b", 32, 3840, 11008, 30, 30, 100352, 65536),
        GatedDelta(delta_layers(32), 30, 30, linear_key_head_dim=96, linear_value_head_dim=192),
    ),
    _olmoe(dataclasses.replace(TINY, name="tiny-olmoe", ffn_hidden_size=64, tie_embeddings=False), 8, 2),
    _olmoe(llama("olmoe-1b-7b", 16, 2048, 1024, 16, 16, 50304, 4096), 64, 8),
)
