"""MiniMax-M2: 256 experts of which 8 are chosen, half of every head rotated, norms over all heads; and a tiny one."""

import dataclasses

from lt_shared.models.architecture import Architecture
from lt_shared.models.presets.dense import TINY, llama


def _minimax_m2(base: Architecture, experts: int, chosen: int) -> Architecture:
    return dataclasses.replace(
        base,
        rotary_percent=0.5,
        rotary_base=5000000.0,
        norm_epsilon=1e-6,
        qk_layernorm=True,
        qk_layernorm_width="all_heads",
        num_experts=experts,
        moe_router_topk=chosen,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_aux_loss_coeff=0.001,
    )


MINIMAX_M2 = (
    _minimax_m2(dataclasses.replace(TINY, name="tiny-minimax-m2", ffn_hidden_size=64, tie_embeddings=False), 8, 2),
    _minimax_m2(dataclasses.replace(llama("minimax-m2", 62, 3072, 1536, 48, 8, 200064, 196608), kv_channels=128), 256, 8),
)
