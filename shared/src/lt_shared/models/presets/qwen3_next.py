"""Qwen3-Next and Qwen3.5: gated delta in three of four layers, gated attention in the fourth, experts in most models."""

import dataclasses

from lt_shared.models.architecture import Architecture, GatedDelta
from lt_shared.models.presets.dense import TINY, llama


def delta_layers(count: int) -> tuple[int, ...]:
    """All layers of `count` but every fourth."""
    return tuple(layer for layer in range(count) if (layer + 1) % 4)


def _dense(model: Architecture, delta: GatedDelta) -> Architecture:
    return dataclasses.replace(
        model,
        norm_epsilon=1e-6,
        rotary_base=10000000.0,
        rotary_percent=0.25,
        qk_layernorm=True,
        layernorm_zero_centered_gamma=True,
        attention_output_gate=True,
        gated_delta=delta,
    )


def _mixture(model: Architecture, delta: GatedDelta, experts: int, chosen: int, width: int, kind: str = "") -> Architecture:
    return dataclasses.replace(
        _dense(model, delta),
        tie_embeddings=False,
        model_type=kind,
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
    _mixture(dataclasses.replace(TINY, name="tiny-qwen3-next"), _TINY_DELTA, 8, 2, 64),
    _mixture(_LARGE, GatedDelta(delta_layers(48)), 512, 10, 512),
)


def _qwen3_5(name: str, layers: int, hidden: int, ffn: int, heads: int, groups: int, values: int) -> Architecture:
    """A dense model with `values` value heads; the models up to 4 B tie their embeddings."""
    # The heads of 256 channels are wider together than the residual stream.
    model = llama(name, layers, hidden, ffn, groups, groups, 248320, 262144)
    model = dataclasses.replace(model, kv_channels=256, num_attention_heads=heads)
    delta = GatedDelta(delta_layers(layers), linear_num_value_heads=values)
    return dataclasses.replace(_dense(model, delta), tie_embeddings=hidden < 3000)


def _qwen3_5_moe(
    name: str, layers: int, hidden: int, heads: int, values: int, experts: int, chosen: int, width: int
) -> Architecture:
    model = dataclasses.replace(llama(name, layers, hidden, width, heads, 2, 248320, 262144), kv_channels=256)
    delta = GatedDelta(delta_layers(layers), linear_num_value_heads=values)
    return _mixture(model, delta, experts, chosen, width, "qwen3_5_moe_text")


QWEN3_5 = (
    _dense(dataclasses.replace(TINY, name="tiny-qwen3.5"), _TINY_DELTA),
    _mixture(dataclasses.replace(TINY, name="tiny-qwen3.5-moe"), _TINY_DELTA, 8, 2, 64, "qwen3_5_moe_text"),
    _qwen3_5("qwen3.5-0.8b", 24, 1024, 3584, 8, 2, 16),
    _qwen3_5("qwen3.5-2b", 24, 2048, 6144, 8, 2, 16),
    _qwen3_5("qwen3.5-4b", 32, 2560, 9216, 16, 4, 32),
    _qwen3_5("qwen3.5-9b", 32, 4096, 12288, 16, 4, 32),
    _qwen3_5("qwen3.5-27b", 64, 5120, 17408, 24, 4, 48),
    _qwen3_5_moe("qwen3.5-35b-a3b", 40, 2048, 16, 32, 256, 8, 512),
    _qwen3_5_moe("qwen3.5-122b-a10b", 48, 3072, 32, 64, 256, 8, 1024),
    _qwen3_5_moe("qwen3.5-397b-a17b", 60, 4096, 32, 64, 512, 10, 1024),
)
