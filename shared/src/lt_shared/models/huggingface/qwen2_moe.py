"""Qwen1.5-MoE and Qwen2-MoE in transformers: Qwen2's attention, experts in every layer, and a shared expert with a gate."""

from typing import Any

from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields, routed_experts
from lt_shared.models.huggingface.config_fields import ModelType

_NAME = "qwen2_moe"


def _write(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {
        "use_sliding_window": False,
        "qkv_bias": architecture.add_qkv_bias,
        "shared_expert_intermediate_size": architecture.moe_shared_expert_intermediate_size,
        **routed_experts.qwen_written(architecture),
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    routed_experts.check_in_every_layer(config, name)
    return config_fields.read(
        config,
        name,
        _NAME,
        add_qkv_bias=config.get("qkv_bias", True),
        moe_ffn_hidden_size=config["moe_intermediate_size"],
        moe_shared_expert_intermediate_size=config["shared_expert_intermediate_size"],
        moe_shared_expert_gate=True,
        **routed_experts.read(config, name, topk=4, aux_loss_coeff=0.001),
    )


_DEFAULTS = {
    "num_key_value_heads": 16,
    "rms_norm_eps": 1e-6,
    "num_experts": 60,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}
QWEN2_MOE = ModelType(_NAME, "Qwen2MoeForCausalLM", _write, _read, defaults=_DEFAULTS)
