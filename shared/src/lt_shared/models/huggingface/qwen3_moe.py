"""Qwen3's mixtures of experts in transformers (30B-A3B, 235B-A22B): every layer has experts.

transformers 5 writes `num_local_experts` for `num_experts`. `norm_topk_prob`, true in the published models and false by default,
is Megatron's softmax over the chosen experts alone.
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType


def _write(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {
        "attention_bias": False,
        "use_sliding_window": False,
        "moe_intermediate_size": architecture.expert_size,
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
        "qwen3_moe",
        qk_layernorm=True,
        num_experts=config_fields.either(config, name, "num_experts", "num_local_experts"),
        moe_router_topk=config.get("num_experts_per_tok", 8),
        moe_ffn_hidden_size=config.get("moe_intermediate_size", 768),
        moe_router_pre_softmax=not config.get("norm_topk_prob", False),
        moe_aux_loss_coeff=config.get("router_aux_loss_coef", 0.001),
    )


QWEN3_MOE = ModelType("qwen3_moe", "Qwen3MoeForCausalLM", _write, _read, defaults={"num_key_value_heads": 4})
