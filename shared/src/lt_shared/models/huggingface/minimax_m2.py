"""MiniMax-M2 in transformers: norms of queries and keys over all heads, RoPE in half of a head, and DeepSeek-V3's router.

Published files name the rotated channels `rotary_dim`, transformers writes `partial_rotary_factor`.
"""

from typing import Any

from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType

_NAME = "minimax_m2"
_ABSENT = {
    "attention_bias": False,
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "shared_intermediate_size": 0,
}


def _write(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written_partly_rotated(architecture) | {
        "rotary_dim": architecture.rotary_channels,
        "num_local_experts": architecture.num_experts,
        "num_experts_per_tok": architecture.moe_router_topk,
        "router_aux_loss_coef": architecture.moe_aux_loss_coeff,
        **{field: value for field, value in _ABSENT.items() if field != "attention_bias"},
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    rotary_dim, head_dim = config.get("rotary_dim"), config["head_dim"]
    return config_fields.read(
        config,
        name,
        _NAME,
        absent=_ABSENT,
        rotary_base=5000000.0,
        rotary_percent=rotary_dim / head_dim if rotary_dim else 1.0,
        qk_layernorm=True,
        qk_layernorm_width="all_heads",
        num_experts=config_fields.either(config, name, "num_local_experts", "num_experts"),
        moe_router_topk=config["num_experts_per_tok"],
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_aux_loss_coeff=config.get("router_aux_loss_coef", 0.001),
    )


MINIMAX_M2 = ModelType(
    _NAME,
    "MiniMaxM2ForCausalLM",
    _write,
    _read,
    aliases={"num_experts": "num_local_experts"},
    defaults={"num_key_value_heads": 8, "head_dim": 128, "num_experts_per_tok": 8, "rms_norm_eps": 1e-6},
)
