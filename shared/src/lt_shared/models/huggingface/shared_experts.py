"""The settings of experts beside which all tokens go through shared ones, with dense layers first: DeepSeek's, and GLM-4.5's.

Published files call multi-token prediction layers `num_nextn_predict_layers`, transformers 5.23 `num_mtp_layers`.
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields

# With a sigmoid router, transformers and TorchTitan add up this many expert scores for a group's score.
GROUP_SCORE_TOPK = 2


def written(architecture: Architecture) -> dict[str, Any]:
    """Raises BadConfig where the shared width is no whole number of experts."""
    shared = architecture.moe_shared_expert_intermediate_size or 0
    if shared % architecture.expert_size:
        raise BadConfig(f"{architecture.name}: {shared} channels are no whole number of shared experts")
    return {
        "n_routed_experts": architecture.num_experts,
        "n_shared_experts": shared // architecture.expert_size,
        "num_experts_per_tok": architecture.moe_router_topk,
        "moe_intermediate_size": architecture.expert_size,
        "first_k_dense_replace": architecture.moe_first_dense_layers,
        "routed_scaling_factor": architecture.moe_router_topk_scaling_factor,
    }


def read(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The fields of an architecture. Raises BadConfig, and KeyError for a size that is missing."""
    expert, shared = config["moe_intermediate_size"], config.get("n_shared_experts") or 0
    return {
        "num_experts": config_fields.either(config, name, "n_routed_experts", "num_local_experts", "num_experts"),
        "moe_router_topk": config["num_experts_per_tok"],
        "moe_ffn_hidden_size": expert,
        "moe_shared_expert_intermediate_size": shared * expert or None,
        "moe_first_dense_layers": config.get("first_k_dense_replace") or 0,
        "moe_router_topk_scaling_factor": float(config.get("routed_scaling_factor", 1.0)),
    }


def sigmoid_router_written(architecture: Architecture) -> dict[str, Any]:
    """The settings of DeepSeek-V3's router, and of the prediction layers that came with it."""
    return {
        "norm_topk_prob": True,
        "n_group": architecture.moe_router_num_groups or 1,
        "topk_group": architecture.moe_router_group_topk or 1,
        "num_nextn_predict_layers": architecture.mtp_num_layers,
    }


def read_sigmoid_router(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The fields of an architecture."""
    return {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "mtp_num_layers": _prediction_layers(config, name),
        **read_groups(config, GROUP_SCORE_TOPK),
    }


def _prediction_layers(config: dict[str, Any], name: str) -> int:
    fields = ("num_nextn_predict_layers", "num_mtp_layers")
    has_fields = any(config.get(field) is not None for field in fields)
    return int(config_fields.either(config, name, *fields)) if has_fields else 0


def read_groups(config: dict[str, Any], score_topk: int) -> dict[str, int | None]:
    """The fields of an architecture whose groups are scored by their best `score_topk` experts; none where all are chosen."""
    groups, chosen = (1 if config.get(field) is None else config[field] for field in ("n_group", "topk_group"))
    if groups == chosen:
        return {"moe_router_num_groups": None, "moe_router_group_topk": None}
    return {"moe_router_num_groups": groups, "moe_router_group_topk": chosen, "moe_router_group_score_topk": score_topk}
