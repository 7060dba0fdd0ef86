"""Qwen3-Next: gated delta in three of four layers, gated attention in the fourth, 512 experts and a shared one."""

import dataclasses

from lt_shared.models.architecture import Architecture, GatedDelta
from lt_shared.models.presets.dense import TINY, llama


def delta_layers(count: int) -> tuple[int, ...]:
    """All layers of `count` but every fourth."""
    return tuple(layer for layer in range(count) if (layer + 1) % 4)


def _qwen3_next(model: Architecture, delta: GatedDelta, experts: int, chosen: int, width: int) -> Architecture:
    return dataclasses.replace(
        model,
        norm_epsilon=1e-6,
        rotary_base=10000000.0,
        rotary_percent=0.25,
        tie_embeddings=False,
        qk_layernorm=True,
        layernorm_zero_centered_gamma=True,
        attention_output_gate=True,
        gated_delta=delta,
        num_experts=experts,
        moe_router_topk=chosen,
        moe_ffn_hidden_size=width,
        moe_shared_expert_intermediate_size=width,
        moe_shared_expert_gate=True,
        moe_aux_loss_coeff=0.001,
    )


_TINY_DELTA = GatedDelta(
    delta_layers(TINY.num_layers),
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=32,
    linear_value_head_dim=32,
)
_LARGE = dataclasses.replace(llama("qwen3-next-80b-a3b", 48, 2048, 512, 16, 2, 151936, 262144), kv_channels=256)
QWEN3_NEXT = (
    _qwen3_next(dataclasses.replace(TINY, name="tiny-qwen3-next"), _TINY_DELTA, 8, 2, 64),
    _qwen3_next(_LARGE, GatedDelta(delta_layers(48)), 512, 10, 512),
)
