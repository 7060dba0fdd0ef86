"""Granite 3 and 4 in transformers: Llama with multipliers of embeddings, layer outputs, attention scores and logits.

`granitemoe` has experts in every layer, `granitemoeshared` also a shared one. `granitemoehybrid` (Granite 4) may have none: its
feed-forward layer has the shared expert's name. Its attention may rotate nothing, and layers may have Mamba-2 in its place.
"""

from functools import partial
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields, mamba, rope_parameters
from lt_shared.models.huggingface.config_fields import ModelType

_MOE, _SHARED, _HYBRID = "granitemoe", "granitemoeshared", "granitemoehybrid"
_TYPES = "layer_types"
# The names of layers in the published files, and in transformers 5.
_NAMES = {"attention": rope_parameters.FULL, "mamba": mamba.LINEAR}


def _write(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {
        "attention_bias": False,
        "mlp_bias": False,
        "embedding_multiplier": architecture.embedding_multiplier,
        "residual_multiplier": architecture.residual_multiplier,
        "attention_multiplier": architecture.softmax_scale or architecture.kv_channels**-0.5,
        "logits_scaling": architecture.logits_scaling,
    }


def _read(config: dict[str, Any], name: str, kind: str = "granite", **family: Any) -> Architecture:
    return config_fields.read(
        config,
        name,
        kind,
        embedding_multiplier=config.get("embedding_multiplier", 1.0),
        residual_multiplier=config.get("residual_multiplier", 1.0),
        softmax_scale=config.get("attention_multiplier", 1.0),
        logits_scaling=config.get("logits_scaling", 1.0),
        **family,
    )


def _write_experts(architecture: Architecture) -> dict[str, Any]:
    return _write(architecture) | {
        "num_local_experts": architecture.num_experts,
        "num_experts_per_tok": architecture.moe_router_topk,
        "router_aux_loss_coef": architecture.moe_aux_loss_coeff,
    }


def _read_experts(config: dict[str, Any], name: str, kind: str, **family: Any) -> Architecture:
    experts = {
        "num_experts": config["num_local_experts"],
        "moe_router_topk": config["num_experts_per_tok"],
        "moe_aux_loss_coeff": config["router_aux_loss_coef"],
    }
    return _read(config, name, kind, **experts, **family, model_type=kind)


def _write_shared(architecture: Architecture) -> dict[str, Any]:
    return _write_experts(architecture) | {"shared_intermediate_size": architecture.moe_shared_expert_intermediate_size or 0}


def _read_shared(config: dict[str, Any], name: str, kind: str = _SHARED, **family: Any) -> Architecture:
    return _read_experts(
        config, name, kind, moe_shared_expert_intermediate_size=config["shared_intermediate_size"] or None, **family
    )


def _write_hybrid(architecture: Architecture) -> dict[str, Any]:
    if architecture.no_rope_freq not in (None, 1):
        raise BadConfig(f"{architecture.name}: all layers of a {_HYBRID} rotate, or none")
    dense = {"num_local_experts": 0, "shared_intermediate_size": architecture.ffn_hidden_size}
    experts = dense | _write(architecture) if architecture.num_experts is None else _write_shared(architecture)
    return experts | {
        "position_embedding_type": None if architecture.no_rope_freq else "rope",
        _TYPES: mamba.layer_types(architecture),
        # Without Mamba layers, transformers still checks that heads divide their width.
        **({"mamba_n_heads": 1} if architecture.mamba is None else mamba.written(architecture)),
    }


def _read_hybrid(config: dict[str, Any], name: str) -> Architecture:
    positions: dict[str, Any] = {"no_rope_freq": None if config["position_embedding_type"] == "rope" else 1}
    types = config.get(_TYPES) or [mamba.LINEAR] * config["num_hidden_layers"]
    if set(types) != {rope_parameters.FULL}:
        positions["mamba"] = mamba.read(config, name, _HYBRID, types)
    if config["num_local_experts"]:
        return _read_shared(config, name, _HYBRID, **positions)
    dense = config | {"intermediate_size": config["shared_intermediate_size"]}
    return _read(dense, name, _HYBRID, **positions, model_type=_HYBRID)


def _with_new_names(config: dict[str, Any]) -> dict[str, Any]:
    spellings = [config[field] for field in (_TYPES, "layers_block_type") if config.get(field)]
    layer_types = [[_NAMES.get(str(name), name) for name in spelling] for spelling in spellings] or [[]]
    if layer_types[0] != layer_types[-1]:
        raise BadConfig(f"layers_block_type and {_TYPES} are one setting, and contradict each other", "remove the wrong one")
    return config | {_TYPES: layer_types[0]}


_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.001, "rms_norm_eps": 1e-6}
_POSITIONS = {"max_position_embeddings": 2048}

GRANITE = ModelType("granite", "GraniteForCausalLM", _write, _read)
GRANITEMOE = ModelType(
    _MOE, "GraniteMoeForCausalLM", _write_experts, partial(_read_experts, kind=_MOE), defaults=_EXPERTS | _POSITIONS
)
GRANITEMOESHARED = ModelType(
    _SHARED,
    "GraniteMoeSharedForCausalLM",
    _write_shared,
    _read_shared,
    defaults=_EXPERTS | _POSITIONS | {"shared_intermediate_size": 0},
)
GRANITEMOEHYBRID = ModelType(
    _HYBRID,
    "GraniteMoeHybridForCausalLM",
    _write_hybrid,
    _read_hybrid,
    language_model=_with_new_names,
    defaults=_EXPERTS | _POSITIONS | mamba.DEFAULTS | {"shared_intermediate_size": 1024, "position_embedding_type": None},
    layer_types=mamba.layer_types,
)
