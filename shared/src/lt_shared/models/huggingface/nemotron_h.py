"""Nemotron-H in transformers: every layer is a Mamba-2 mixer, attention, an MLP or experts alone, with one norm.

Attention rotates nothing; MLPs and experts have squared ReLU and no gates. Published files have the layers as a string of
Megatron's symbols, transformers 5 has a list. transformers 5.23 makes a time step at least `time_step_min`, which megatron-core
does not.
"""

from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture, Mamba
from lt_shared.models.architecture.sizes import ATTENTION, MAMBA, NO_MIXER
from lt_shared.models.huggingface import config_fields, shared_experts
from lt_shared.models.huggingface.config_fields import ModelType

_NAME = "nemotron_h"
_TYPES, _PATTERN = "layers_block_type", "hybrid_override_pattern"
# The names of layers in transformers 5, and their symbols.
_MAMBA, _ATTENTION, _MLP, _EXPERTS = "linear_attention", "full_attention", "mlp", "moe"
_SYMBOLS = {_MAMBA: "M", _ATTENTION: "*", _MLP: "-", _EXPERTS: "E"}
_OLD_NAMES = {"mamba": _MAMBA, "attention": _ATTENTION}
_SIZES = {
    "mamba_num_heads": "mamba_num_heads",
    "mamba_head_dim": "mamba_head_dim",
    "ssm_state_size": "mamba_state_dim",
    "n_groups": "mamba_num_groups",
    "conv_kernel": "taps",
    "use_conv_bias": "convolution_bias",
    "time_step_min": "least_step",
}
_ABSENT = {
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias"), False),
    "mlp_hidden_act": "relu2",
    "mamba_hidden_act": "silu",
    "sliding_window": None,
    "moe_latent_size": None,
    "norm_topk_prob": True,
    "n_shared_experts": 1,
}


def _layer_types(architecture: Architecture) -> list[str]:
    names = {MAMBA: _MAMBA, ATTENTION: _ATTENTION, NO_MIXER: _EXPERTS if architecture.num_experts else _MLP}
    return [names.get(architecture.mixer(layer), "") for layer in range(architecture.num_layers)]


def _write(architecture: Architecture) -> dict[str, Any]:
    mamba = architecture.mamba
    if mamba is None or not architecture.mlp_layers:
        raise BadConfig(f"{architecture.name}: no layer has Mamba-2 alone")
    types = _layer_types(architecture)
    unread = ("rope_parameters", "rope_theta", "rope_scaling", "rms_norm_eps", "hidden_act")
    return {
        **{key: value for key, value in config_fields.written(architecture).items() if key not in unread},
        **{field: getattr(mamba, ours) for field, ours in _SIZES.items()},
        **_ABSENT,
        "layer_norm_epsilon": architecture.norm_epsilon,
        _TYPES: types,
        _PATTERN: "".join(_SYMBOLS[kind] for kind in types),
        **(_experts_written(architecture) if architecture.num_experts else {}),
    }


def _experts_written(architecture: Architecture) -> dict[str, Any]:
    return {
        "n_routed_experts": architecture.num_experts,
        "num_experts_per_tok": architecture.moe_router_topk,
        "moe_intermediate_size": architecture.expert_size,
        "moe_shared_expert_intermediate_size": architecture.moe_shared_expert_intermediate_size,
        "routed_scaling_factor": architecture.moe_router_topk_scaling_factor,
        "n_group": architecture.moe_router_num_groups or 1,
        "topk_group": architecture.moe_router_group_topk or 1,
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    config_fields.check_values(config, _ABSENT, name, _NAME)
    types = config[_TYPES]
    layers = {kind: tuple(layer for layer, other in enumerate(types) if other == kind) for kind in _SYMBOLS}
    if layers[_MLP] and layers[_EXPERTS]:
        raise BadConfig(f"{name}: {_TYPES} has {_MLP} and {_EXPERTS}, and models here have one kind of them")
    if not layers[_MAMBA] or not (layers[_MLP] or layers[_EXPERTS]):
        raise BadConfig(f"{name}: {_TYPES} has no {_MAMBA}, or neither {_MLP} nor {_EXPERTS}, which models here have")
    fields = {key: value for key, value in config.items() if not key.startswith("rope_")}
    return config_fields.read(
        fields | {"rms_norm_eps": config["layer_norm_epsilon"], "num_hidden_layers": len(types)},
        name,
        _NAME,
        absent={},
        activation="relu2",
        activation_here="relu2",
        gated_linear_unit=False,
        no_rope_freq=1,
        mamba=Mamba(layers[_MAMBA], **{ours: config[field] for field, ours in _SIZES.items()}),
        mlp_layers=layers[_MLP] or layers[_EXPERTS],
        **(_experts_read(config) if layers[_EXPERTS] else {}),
    )


def _experts_read(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "num_experts": config["n_routed_experts"],
        "moe_router_topk": config["num_experts_per_tok"],
        "moe_ffn_hidden_size": config["moe_intermediate_size"],
        "moe_shared_expert_intermediate_size": config["moe_shared_expert_intermediate_size"],
        "moe_router_topk_scaling_factor": float(config["routed_scaling_factor"]),
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        **shared_experts.read_groups(dict(config), shared_experts.GROUP_SCORE_TOPK),
    }


def _with_types(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with the list of layers, whatever form they have. Raises BadConfig for an unknown layer or another
    number of layers."""
    symbols = {symbol: kind for kind, symbol in _SYMBOLS.items()}
    listed, pattern = config.get(_TYPES), config.get(_PATTERN)
    forms = [[_OLD_NAMES.get(str(kind), str(kind)) for kind in listed]] if listed else []
    forms += [[symbols.get(symbol, symbol) for symbol in pattern]] if pattern else []
    types = forms[0] if forms else [_MAMBA, _EXPERTS, _ATTENTION, _MLP]
    if forms and forms[-1] != types:
        raise BadConfig(f"{_TYPES} and {_PATTERN} are one setting, and contradict each other", "remove the wrong one")
    for layer, kind in enumerate(types):
        if kind not in _SYMBOLS:
            raise BadConfig(f"layer {layer} in {_TYPES} is {kind!r:.40}, known here are {', '.join(_SYMBOLS)}")
    count = config.get("num_hidden_layers")
    if count is not None and count != len(types):
        raise BadConfig(f"{_TYPES} has {len(types)} layers, and num_hidden_layers is {count}")
    return {key: value for key, value in config.items() if key != "layer_types"} | {_TYPES: types}


_DEFAULTS: Mapping[str, Any] = {
    "layer_norm_epsilon": 1e-5,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "time_step_min": 0.001,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "routed_scaling_factor": 1.0,
}
_ALIASES = {
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_dt_min": "time_step_min",
    "mamba_conv_bias": "use_conv_bias",
    "num_local_experts": "n_routed_experts",
    "layer_types": _TYPES,
}
NEMOTRON_H = ModelType(
    _NAME,
    "NemotronHForCausalLM",
    _write,
    _read,
    aliases=_ALIASES,
    language_model=_with_types,
    defaults=_DEFAULTS,
    layer_types=_layer_types,
)
