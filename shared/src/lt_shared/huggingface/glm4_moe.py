"""GLM-4.5, GLM-4.6 and Air in transformers: DeepSeek-V3's experts, router and prediction layers on grouped query attention.

Half of each head is rotated (`partial_rotary_factor`), queries, keys and values have biases (`attention_bias`), and all but Air
norm queries and keys (`use_qk_norm`).
"""

from typing import Any

from lt_shared.architecture import Architecture
from lt_shared.console import BadConfig
from lt_shared.huggingface import config_fields, deepseek
from lt_shared.huggingface.config_fields import ModelType

_ROUTER = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True}
_ABSENT = {"mlp_bias": False, "use_sliding_window": False, **_ROUTER}


def _write(architecture: Architecture) -> dict[str, Any]:
    shared = architecture.moe_shared_expert_intermediate_size or 0
    if shared % architecture.expert_size:
        raise BadConfig(f"{architecture.name}: {shared} channels are no whole number of shared experts")
    fields = config_fields.written(architecture)
    fields["rope_parameters"]["partial_rotary_factor"] = architecture.rotary_percent
    return fields | {
        "partial_rotary_factor": architecture.rotary_percent,
        "attention_bias": architecture.add_qkv_bias,
        "use_qk_norm": architecture.qk_layernorm,
        "n_routed_experts": architecture.num_experts,
        "n_shared_experts": shared // architecture.expert_size,
        "num_experts_per_tok": architecture.moe_router_topk,
        "moe_intermediate_size": architecture.expert_size,
        "first_k_dense_replace": architecture.moe_first_dense_layers,
        "routed_scaling_factor": architecture.moe_router_topk_scaling_factor,
        "norm_topk_prob": True,
        "n_group": architecture.moe_router_num_groups or 1,
        "topk_group": architecture.moe_router_group_topk or 1,
        "num_nextn_predict_layers": architecture.mtp_num_layers,
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    expert, shared = config["moe_intermediate_size"], config.get("n_shared_experts") or 0
    return config_fields.read(
        config,
        name,
        "glm4_moe",
        absent=_ABSENT,
        partly_rotated=True,
        add_qkv_bias=config.get("attention_bias", False),
        qk_layernorm=config.get("use_qk_norm", False),
        num_experts=deepseek.experts_of(config, name),
        moe_router_topk=config["num_experts_per_tok"],
        moe_ffn_hidden_size=expert,
        moe_shared_expert_intermediate_size=shared * expert or None,
        moe_first_dense_layers=config.get("first_k_dense_replace") or 0,
        moe_router_topk_scaling_factor=float(config.get("routed_scaling_factor", 1.0)),
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        mtp_num_layers=deepseek.prediction_layers(config, name),
        **deepseek.groups_of(config, name),
    )


GLM4_MOE = ModelType("glm4_moe", "Glm4MoeForCausalLM", _write, _read)
