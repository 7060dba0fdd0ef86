"""The settings of experts in every layer, without dense layers or balancing biases: Qwen's mixtures and OLMoE.

transformers 5 writes `num_local_experts` for `num_experts`. `norm_topk_prob`, false by default, is Megatron's softmax over the
chosen experts alone.
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields

# Qwen's settings of layers without experts, with the values that leave none.
_IN_EVERY_LAYER = {"decoder_sparse_step": 1, "mlp_only_layers": []}


def written(architecture: Architecture) -> dict[str, Any]:
    return {
        "num_experts": architecture.num_experts,
        "num_experts_per_tok": architecture.moe_router_topk,
        "norm_topk_prob": not architecture.moe_router_pre_softmax,
        "router_aux_loss_coef": architecture.moe_aux_loss_coeff,
    }


def read(config: dict[str, Any], name: str, *, topk: int, aux_loss_coeff: float) -> dict[str, Any]:
    """The fields of an architecture; `topk` and `aux_loss_coeff` are transformers' defaults. Raises BadConfig and KeyError."""
    return {
        "num_experts": config_fields.either(config, name, "num_experts", "num_local_experts"),
        "moe_router_topk": config.get("num_experts_per_tok", topk),
        "moe_router_pre_softmax": not config.get("norm_topk_prob", False),
        "moe_aux_loss_coeff": config.get("router_aux_loss_coef", aux_loss_coeff),
    }


def qwen_written(architecture: Architecture) -> dict[str, Any]:
    return {"moe_intermediate_size": architecture.expert_size, **written(architecture), **_IN_EVERY_LAYER}


def check_in_every_layer(config: dict[str, Any], name: str) -> None:
    """Raises BadConfig if some layers have no experts."""
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise BadConfig(
            f"{name}: mlp_only_layers or decoder_sparse_step leave some layers without experts, which no published model does"
        )
