"""Qwen3's mixtures of experts: norms of queries and keys, heads of 128, 128 experts, 8 per token."""

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


QWEN3_MOE = (
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
