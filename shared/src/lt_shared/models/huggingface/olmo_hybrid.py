"""OLMo Hybrid in transformers: gated delta in three of four layers, with norms in front; OLMo 2's attention in the fourth.

The published models rotate nothing: their rotary base is null.
"""

from typing import Any

from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields, gated_delta
from lt_shared.models.huggingface.config_fields import ModelType

_NAME = "olmo_hybrid"
# Of the norm of gated delta's output, in transformers' code.
_EPSILON = 1e-5
_ROTARY_BASE = 10000.0


def _write(architecture: Architecture) -> dict[str, Any]:
    fields = config_fields.written(architecture)
    if architecture.no_rope_freq:
        fields |= {"rope_parameters": {"rope_type": "default", "rope_theta": None}, "rope_theta": None}
    return {
        **fields,
        **gated_delta.written(architecture),
        "attention_bias": False,
        "linear_allow_neg_eigval": bool(architecture.gated_delta and architecture.gated_delta.doubles_strength),
        **config_fields.padding(architecture, 100277),
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    heads = config["num_attention_heads"]
    sizes = {size: config.get(size) for size in ("linear_num_key_heads", "linear_num_value_heads")}
    sizes = {size: heads if count is None else count for size, count in sizes.items()}
    key_size = config.get("linear_key_head_dim")
    key_size = int(0.75 * config["hidden_size"] / sizes["linear_num_key_heads"]) if key_size is None else key_size
    value_size = config.get("linear_value_head_dim")
    sizes |= {"linear_key_head_dim": key_size, "linear_value_head_dim": 2 * key_size if value_size is None else value_size}
    delta = gated_delta.read(
        config | sizes | {gated_delta.INTERVAL: 4},
        name,
        doubles_strength=config.get("linear_allow_neg_eigval", True),
        output_norm_epsilon=None if config["rms_norm_eps"] == _EPSILON else _EPSILON,
    )
    # A base that is null, and not one that is missing, means no rotation; one in rope_parameters counts first.
    rotates = {"rope_theta": _ROTARY_BASE, **config, **(config.get("rope_parameters") or {})}["rope_theta"] is not None
    return config_fields.read(
        config if rotates else {key: value for key, value in config.items() if not key.startswith("rope_")},
        name,
        _NAME,
        absent={"attention_bias": False},
        norm_placement="post",
        qk_layernorm=True,
        qk_layernorm_width="all_heads",
        gated_delta=delta,
        no_rope_freq=None if rotates else 1,
    )


OLMO_HYBRID = ModelType(
    _NAME,
    "OlmoHybridForCausalLM",
    _write,
    _read,
    defaults={"rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4},
    layer_types=gated_delta.layer_types,
)
