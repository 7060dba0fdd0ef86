"""Qwen1.5-MoE and Qwen2-MoE in transformers: Qwen2's attention, experts in every layer, and a shared expert with a gate."""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType

_NAME = "qwen2_moe"


def _write(architecture: Architecture) -> dict[str, Any]:
    shared = architecture.moe_shared_expert_intermediate_size
    return config_fields.written(architecture) | {
        "use_sliding_window": False,
        "qkv_bias": architecture.add_qkv_bias,
        "moe_intermediate_size": architecture.expert_size,
        "shared_expert_intermediate_size": shared,
        "num_experts": architecture.num_experts,
        "num_experts_per_tok": architecture.moe_router_topk,
        "norm_topk_prob": not architecture.moe_router_pre_softmax,
        "router_aux_loss_coef": architecture.moe_aux_loss_coeff,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise BadConfig(
            f"{name}: mlp_only_layers or decoder_sparse_step leave some layers without experts, which no published model does"
        )
    return config_fields.read(
        config,
        name,
        _NAME,
        add_qkv_bias=config.get("qkv_bias", True),
        num_experts=config_fields.either(config, name, "num_experts", "num_local_experts"),
        moe_router_topk=config["num_experts_per_tok"],
        moe_ffn_hidden_size=config["moe_intermediate_size"],
        moe_shared_expert_intermediate_size=config["shared_expert_intermediate_size"],
        moe_shared_expert_gate=True,
        moe_router_pre_softmax=not config.get("norm_topk_prob", False),
        moe_aux_loss_coeff=config.get("router_aux_loss_coef", 0.001),
    )


_DEFAULTS = {
    "num_key_value_heads": 16,
    "rms_norm_eps": 1e-6,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}
QWEN2_MOE = ModelType(_NAME, "Qwen2MoeForCausalLM", _write, _read, defaults=_DEFAULTS)
