"""ERNIE 4.5's mixtures in transformers: RoPE of adjacent channels, dense layers first, shared experts, a biased softmax router.

The biases choose experts and do not weigh them. The published files of the 21B model also have a multi-token prediction layer,
which transformers does not load.
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType

_NAME = "ernie4_5_moe"
_START, _END, _INTERVAL = (f"moe_layer_{word}" for word in ("start_index", "end_index", "interval"))


def _write(architecture: Architecture) -> dict[str, Any]:
    expert, shared = architecture.expert_size, architecture.moe_shared_expert_intermediate_size or 0
    if shared % expert:
        raise BadConfig(f"{architecture.name}: {shared} channels are no whole number of shared experts of {expert}")
    return config_fields.written(architecture) | {
        "use_bias": False,
        "moe_intermediate_size": expert,
        "moe_k": architecture.moe_router_topk,
        "moe_num_experts": architecture.num_experts,
        "moe_num_shared_experts": shared // expert,
        _START: architecture.moe_first_dense_layers,
        _END: architecture.num_layers - 1,
        _INTERVAL: 1,
        "router_aux_loss_coef": architecture.moe_aux_loss_coeff,
        **config_fields.padding(architecture, 0),
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    last = config["num_hidden_layers"] - 1
    if config[_INTERVAL] != 1 or config[_END] not in (-1, last):
        raise BadConfig(f"{name}: {_INTERVAL} or {_END} leaves some layers behind the first ones without experts")
    expert = config["moe_intermediate_size"]
    return config_fields.read(
        config,
        name,
        _NAME,
        absent={"use_bias": False, "moe_norm_min": 1e-12},
        rotary_base=500000.0,
        num_experts=config["moe_num_experts"],
        moe_router_topk=config["moe_k"],
        moe_ffn_hidden_size=expert,
        moe_shared_expert_intermediate_size=(config["moe_num_shared_experts"] or 0) * expert or None,
        moe_first_dense_layers=config[_START],
        moe_router_enable_expert_bias=True,
        moe_aux_loss_coeff=config["router_aux_loss_coef"],
    )


ERNIE4_5_MOE = ModelType(
    _NAME,
    "Ernie4_5_MoeForCausalLM",
    _write,
    _read,
    aliases={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
    defaults={
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        _START: 1,
        _END: -1,
        _INTERVAL: 1,
        "router_aux_loss_coef": 0.001,
    },
)
