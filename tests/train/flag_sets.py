"""What config.json files of other sizes say, that no preset does: each family's settings, turned one way or the other.

Values are those of published models where there are some (Moonlight-16B-A3B, GLM-4.5-Air, Gemma 2 with no cap of scores), and
what their authors' configurations allow.
"""

import dataclasses
from typing import Any

from lt_shared.models.architecture import Architecture
from lt_shared.models.presets import preset
from lt_shared.models.rope_scaling import LinearScaling, LongRopeScaling, RopeScaling, YarnScaling

_V3, _V2 = preset("tiny-deepseek-v3"), preset("tiny-deepseek-v2")
_ALONE = {"moe_first_dense_layers": 0}
_UNGROUPED = {"moe_router_num_groups": None, "moe_router_group_topk": None}


def _latent(shape: Architecture, rank: int | None) -> Any:
    assert shape.latent_attention
    return dataclasses.replace(shape.latent_attention, q_lora_rank=rank, v_head_dim=48)


def _heads(count: int, groups: int) -> dict[str, int]:
    return {"num_attention_heads": count, "num_query_groups": groups}


_SETS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "v3 like Moonlight": ("deepseek-v3", 2, {"latent_attention": _latent(_V3, None), "rope_scaling": None, **_UNGROUPED}),
    "v3 of experts alone": ("deepseek-v3", 2, {**_ALONE, **_heads(7, 7), "moe_shared_expert_intermediate_size": 128}),
    "v3 with two mscales": ("deepseek-v3", 2, {"rope_scaling": YarnScaling(8.0, 16, mscale=0.7, mscale_all_dim=1.0)}),
    "v3 with Llama's scaling": ("deepseek-v3", 2, {"rope_scaling": RopeScaling(8.0, original_max_position_embeddings=16)}),
    "v2 with a query latent": ("deepseek-v2", 4, {"latent_attention": _latent(_V2, 24), "moe_first_dense_layers": 3}),
    "v2 scaled": ("deepseek-v2", 2, {"moe_router_topk_scaling_factor": 16.0, "rope_scaling": YarnScaling(8.0, 16)}),
    "v2 in groups, like V2 itself": (
        "deepseek-v2",
        2,
        {"moe_router_topk": 4, "moe_router_num_groups": 4, "moe_router_group_topk": 2, "moe_router_group_score_topk": 1},
    ),
    "v3 with few experts of many groups": ("deepseek-v3", 2, {"moe_router_topk": 3, "moe_router_group_score_topk": 2}),
    "glm like Air": (
        "glm4-moe",
        2,
        {"qk_layernorm": False, "moe_router_topk_scaling_factor": 1.0, **_heads(9, 3), "kv_channels": 32},
    ),
    "glm without biases": ("glm4-moe", 2, {**_ALONE, "add_qkv_bias": False, "rotary_percent": 0.25}),
    "qwen3 not normalised": ("qwen3-moe", 2, {"moe_router_pre_softmax": True, "rope_scaling": YarnScaling(4.0, 16)}),
    "gpt-oss all windows": ("gpt-oss", 2, {"window_attn_skip_freq": None, "rope_scaling": YarnScaling(2.0, 32), **_heads(6, 3)}),
    "gemma2 uncapped": ("gemma2", 2, {"attn_logit_softcapping": None, "softmax_scale": 24**-0.5, "sliding_window": 16}),
    "gemma3 every second": ("gemma3", 4, {"window_attn_skip_freq": 2, "final_logit_softcapping": 3.0, "sliding_window": 16}),
    "olmo3 every second": ("olmo3", 2, {"window_attn_skip_freq": 2, "sliding_window": 16, "rope_scaling": LinearScaling(4.0)}),
    "granite untied": ("granite", 2, {"tie_embeddings": False, "softmax_scale": 0.2, "rope_scaling": LinearScaling(2.0)}),
    "phi3 with a factor": (
        *("phi3", 2),
        {"rotary_percent": 0.5, "rope_scaling": LongRopeScaling((1.0,) * 8, (3.0,) * 8, 32, factor=4.0), "tie_embeddings": False},
    ),
}


def _made(family: str, layers: int, settings: dict[str, Any]) -> Architecture:
    return dataclasses.replace(preset(f"tiny-{family}"), num_layers=layers, mtp_num_layers=0, **settings)


FLAG_SETS = {name: _made(*of) for name, of in _SETS.items()}
