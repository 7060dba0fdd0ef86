"""Kimi Linear: Kimi Delta Attention in three of four layers, latent attention that rotates nothing, DeepSeek-V3's experts.

Published files number the layers from 1 in `linear_attn_config`; transformers writes a size each, and lists of kinds of layers.
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields, deepseek, gated_delta
from lt_shared.models.huggingface.config_fields import ABSENT, ModelType
from lt_shared.models.huggingface.gated_delta import LINEAR
from lt_shared.models.huggingface.rope_parameters import FULL

_NAME = "kimi_linear"
# The settings' names in config.json, by DeepSeek's names, which transformers reads, too.
_NAMES = {
    "max_position_embeddings": "model_max_length",
    "n_group": "num_expert_group",
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
    "norm_topk_prob": "moe_renormalize",
}
_OTHER_NAMES = {"n_routed_experts": "num_local_experts"}
# transformers' sizes of the linear layers, by those in `linear_attn_config`.
_SIZES = {"num_heads": "linear_num_heads", "head_dim": "linear_head_dim", "short_conv_kernel_size": "linear_conv_kernel_dim"}
_CONFIG, _LINEAR_LAYERS, _FULL_LAYERS = "linear_attn_config", "kda_layers", "full_attn_layers"
_FIXED = {
    "moe_router_activation_func": "sigmoid",
    "moe_layer_freq": 1,
    "mla_use_nope": True,
    "norm_topk_prob": True,
    "pretraining_tp": 1,
}
_PADDING = 163839


def _write(architecture: Architecture) -> dict[str, Any]:
    delta = architecture.gated_delta
    if delta is None:
        raise BadConfig(f"{architecture.name}: no layer has Kimi Delta Attention")
    fields = deepseek.written_v3(architecture)
    for field in ("head_dim", "rope_theta", "rope_scaling", "rope_parameters", "rope_interleave", "scoring_func", "topk_method"):
        del fields[field]
    fields = {_NAMES.get(field, field): value for field, value in fields.items()}
    sizes = {
        "num_heads": delta.linear_num_value_heads,
        "head_dim": delta.linear_value_head_dim,
        "short_conv_kernel_size": delta.linear_conv_kernel_dim,
    }
    types = gated_delta.layer_types(architecture)
    numbers = {
        field: [number for number, kind in enumerate(types, 1) if kind == of_field]
        for field, of_field in ((_LINEAR_LAYERS, LINEAR), (_FULL_LAYERS, FULL))
    }
    return {
        **fields,
        **{_SIZES[field]: size for field, size in sizes.items()},
        _CONFIG: sizes | numbers,
        "layer_types": types,
        **deepseek.mlp_layer_types(architecture.num_layers, architecture.moe_first_dense_layers),
        "moe_router_activation_func": "sigmoid",
        "mla_use_nope": True,
        **config_fields.padding(architecture, _PADDING),
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    result = {field: value for field, value in config.items() if field not in _NAMES.values()}
    for field, written in _NAMES.items():
        names = [other for other in (written, field, _OTHER_NAMES.get(field)) if other in config]
        if names:
            result[field] = config_fields.either(config, name, *names)
    count = result["num_hidden_layers"]
    sizes = _linear_sizes(config, name)
    delta = gated_delta.read(
        {
            **result,
            "layer_types": _layer_types(config, name, count),
            "linear_num_key_heads": sizes["linear_num_heads"],
            "linear_num_value_heads": sizes["linear_num_heads"],
            "linear_key_head_dim": sizes["linear_head_dim"],
            "linear_value_head_dim": sizes["linear_head_dim"],
            "linear_conv_kernel_dim": sizes["linear_conv_kernel_dim"],
        },
        name,
        decays_channels=True,
    )
    result["first_k_dense_replace"] = _dense_layers(config, name)
    # Nothing is rotated, whatever the rotary settings in published files are.
    return deepseek.read_v3(
        result, name, _NAME, ABSENT | _FIXED, rope_scaling=None, no_rope_freq=1, gated_delta=delta, model_type=""
    )


def _linear_sizes(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Raises BadConfig for a size that differs from the one in `linear_attn_config`, KeyError for a missing size."""
    group = dict(config.get(_CONFIG) or {})
    sizes = {}
    for field, alone in _SIZES.items():
        values = [place[key] for place, key in ((group, field), (config, alone)) if place.get(key) is not None]
        if len(set(values)) > 1:
            raise BadConfig(f"{name}: {alone} and {_CONFIG}.{field} contradict each other", "remove the wrong one")
        if not values:
            raise KeyError(alone)
        sizes[alone] = values[0]
    return sizes


def _layer_types(config: dict[str, Any], name: str, count: int) -> list[str]:
    """Raises BadConfig for layers that `linear_attn_config` names twice, or not at all, and if `layer_types` contradicts it."""
    group, types = dict(config.get(_CONFIG) or {}), config.get("layer_types")
    if not (_LINEAR_LAYERS in group and _FULL_LAYERS in group):
        return list(types) if types else [FULL if layer and layer % 4 == 0 else LINEAR for layer in range(count)]
    linear, full = (list(group[field]) for field in (_LINEAR_LAYERS, _FULL_LAYERS))
    if sorted(linear + full) != list(range(1, count + 1)):
        raise BadConfig(f"{name}: {_LINEAR_LAYERS} and {_FULL_LAYERS} do not have each of the layers 1 to {count} once")
    numbered = [FULL if layer + 1 in full else LINEAR for layer in range(count)]
    if types and list(types) != numbered:
        raise BadConfig(f"{name}: layer_types and {_CONFIG} contradict each other", "remove the wrong one")
    return numbered


def _dense_layers(config: dict[str, Any], name: str) -> int:
    """Return the number of first layers without experts. transformers takes `mlp_layer_types` before `first_k_dense_replace`."""
    stated = config.get("first_k_dense_replace")
    dense = deepseek.dense_layers(config, name, default=1 if stated is None else int(stated))
    if stated not in (None, dense):
        kinds = config["mlp_layer_types"]
        raise BadConfig(f"{name}: mlp_layer_types is {kinds!r:.80}, and only first layers without experts are known here")
    return dense


_DEFAULTS = {"num_key_value_heads": 32, "q_lora_rank": None, "routed_scaling_factor": 2.446, "topk_group": 1}
KIMI_LINEAR = ModelType(_NAME, "KimiLinearForCausalLM", _write, _read, defaults=_DEFAULTS, layer_types=gated_delta.layer_types)
