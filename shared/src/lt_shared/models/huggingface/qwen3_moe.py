"""Qwen3's mixtures of experts in transformers (30B-A3B, 235B-A22B). `norm_topk_prob` is true in the published models."""

from typing import Any

from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields, routed_experts
from lt_shared.models.huggingface.config_fields import ModelType


def _write(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {
        "attention_bias": False,
        "use_sliding_window": False,
        **routed_experts.qwen_written(architecture),
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    routed_experts.check_in_every_layer(config, name)
    return config_fields.read(
        config,
        name,
        "qwen3_moe",
        qk_layernorm=True,
        moe_ffn_hidden_size=config.get("moe_intermediate_size", 768),
        **routed_experts.read(config, name, topk=8, aux_loss_coeff=0.001),
    )


QWEN3_MOE = ModelType("qwen3_moe", "Qwen3MoeForCausalLM", _write, _read, defaults={"num_key_value_heads": 4})
