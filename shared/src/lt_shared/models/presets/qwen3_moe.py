"""Qwen's mixtures of experts: norms of queries and keys, heads of 128, 128 experts, 8 per token.

Qwen1.5's has a shared expert with a gate instead of such norms.
"""

import dataclasses

from lt_shared.models.architecture import Architecture
from lt_shared.models.presets.dense import TINY, llama


def _qwen3_moe(name: str, layers: int, hidden: int, expert: int, heads: int) -> Architecture:
    return dataclasses.replace(
        llama(name, layers, hidden, expert, heads, 4, 151936, 40960),
        kv_channels=128,
        norm_epsilon=1e-6,
        rotary_base=1000000.0,
        qk_layernorm=True,
        num_experts=128,
        moe_router_topk=8,
        moe_aux_loss_coeff=0.001,
    )


def _qwen2_moe(model: Architecture, experts: int, chosen: int, width: int, shared: int) -> Architecture:
    return dataclasses.replace(
        model,
        norm_epsilon=1e-6,
        rotary_base=1000000.0,
        add_qkv_bias=True,
        num_experts=experts,
        moe_router_topk=chosen,
        moe_ffn_hidden_size=width,
        moe_shared_expert_intermediate_size=shared,
        moe_shared_expert_gate=True,
        moe_router_pre_softmax=True,
        moe_aux_loss_coeff=0.001,
    )


QWEN3_MOE = (
    _qwen2_moe(dataclasses.replace(TINY, name="tiny-qwen2-moe", tie_embeddings=False), 8, 2, 64, 96),
    _qwen2_moe(llama("qwen1.5-moe-a2.7b", 24, 2048, 1408, 16, 16, 151936, 8192), 60, 4, 1408, 5632),
    dataclasses.replace(
        TINY,
        name="tiny-qwen3-moe",
        ffn_hidden_size=64,
        kv_channels=64,
        norm_epsilon=1e-6,
        tie_embeddings=False,
        qk_layernorm=True,
        num_experts=8,
        moe_router_topk=2,
        moe_aux_loss_coeff=0.001,
    ),
    _qwen3_moe("qwen3-30b-a3b", 48, 2048, 768, 32),
    _qwen3_moe("qwen3-235b-a22b", 94, 4096, 1536, 64),
)
