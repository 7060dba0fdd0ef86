"""Kimi Linear and a tiny one: Kimi Delta Attention in three of four layers, latent attention in the fourth and in the last."""

import dataclasses
from typing import Any

from lt_shared.models.architecture import Architecture, GatedDelta, LatentAttention
from lt_shared.models.presets.dense import llama
from lt_shared.models.presets.qwen3_next import delta_layers


def _kimi_linear(base: Architecture, heads: int, size: int, latent: LatentAttention, **experts: Any) -> Architecture:
    """Build a model with `heads` heads of `size` channels in the layers of Kimi Delta Attention."""
    layers = tuple(layer for layer in delta_layers(base.num_layers) if layer != base.num_layers - 1)
    return dataclasses.replace(
        base,
        kv_channels=0,
        no_rope_freq=1,
        gated_delta=GatedDelta(layers, heads, heads, size, size, decays_channels=True),
        latent_attention=latent,
        moe_first_dense_layers=1,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_router_topk_scaling_factor=2.446,
        moe_aux_loss_coeff=0.0001,
        **experts,
    )


_LATENT = LatentAttention(q_lora_rank=None, kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128)
_TINY_LATENT = LatentAttention(q_lora_rank=None, kv_lora_rank=32, qk_head_dim=32, qk_pos_emb_head_dim=16, v_head_dim=32)
_LARGE = dataclasses.replace(
    llama("kimi-linear-48b-a3b", 27, 2048, 9216, 32, 32, 163840, 1048576), hidden_size=2304, kv_channels=0
)

KIMI_LINEAR = (
    _kimi_linear(
        llama("tiny-kimi-linear", 4, 128, 352, 4, 4, 2048, 1024),
        4,
        32,
        _TINY_LATENT,
        num_experts=8,
        moe_router_topk=2,
        moe_ffn_hidden_size=64,
        moe_shared_expert_intermediate_size=64,
    ),
    _kimi_linear(
        _LARGE,
        32,
        128,
        _LATENT,
        num_experts=256,
        moe_router_topk=8,
        moe_ffn_hidden_size=1024,
        moe_shared_expert_intermediate_size=1024,
    ),
)
