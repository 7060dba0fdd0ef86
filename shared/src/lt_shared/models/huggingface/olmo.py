"""OLMo 1, with LayerNorm without parameters; OLMo 2, OLMo 3 and OLMoE: norms of queries and keys over all heads at once.

OLMo 2 and 3 have norms behind attention and MLP; OLMoE has them before, and experts in every layer. OLMo 3 has a window on three
of four layers; those rotate without the YaRN scaling of the others. An OLMo 3 without windows is an OLMo 2.
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields, rope_parameters, routed_experts
from lt_shared.models.huggingface.config_fields import ModelType

_ABSENT = {"attention_bias": False}
_ROTARY_BASE = 500000.0
# Of OLMo 1, in transformers' code.
_EPSILON = 1e-5
# Of OLMo 3: every so many layers, one has no window.
_PATTERN = 4
_FEATURES: dict[str, Any] = {"norm_placement": "post", "qk_layernorm": True, "qk_layernorm_width": "all_heads"}


def _write_olmo2(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | _ABSENT


def _read_olmo2(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(config, name, "olmo2", absent=_ABSENT, **_FEATURES)


def _write_olmo3(architecture: Architecture) -> dict[str, Any]:
    rotary = (architecture.rotary_base, architecture.rope_scaling, architecture.local_rotary_base)
    return _write_olmo2(architecture) | {
        "sliding_window": architecture.sliding_window,
        "layer_types": config_fields.layer_types(architecture),
        **rope_parameters.written_by_layer_type(*rotary),
    }


def _read_olmo3(config: dict[str, Any], name: str) -> Architecture:
    base, scaling, local_base = rope_parameters.read_by_layer_type(config, name, _ROTARY_BASE)
    frequency = config_fields.window_frequency(config, _PATTERN)
    window = config.get("sliding_window", 4096) if frequency != 1 else None
    return config_fields.read(
        config,
        name,
        "olmo3",
        absent=_ABSENT,
        rotary_base=base,
        rope_scaling=scaling,
        sliding_window=window,
        window_attn_skip_freq=frequency if window else None,
        local_rotary_base=local_base if window else None,
        **_FEATURES,
    )


def _write_olmoe(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {
        "attention_bias": False,
        "clip_qkv": None,
        **routed_experts.written(architecture),
    }


def _read_olmoe(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(
        config,
        name,
        "olmoe",
        absent=_ABSENT | {"clip_qkv": None},
        qk_layernorm=True,
        qk_layernorm_width="all_heads",
        **routed_experts.read(config, name, topk=8, aux_loss_coeff=0.01),
    )


def _write_olmo(architecture: Architecture) -> dict[str, Any]:
    if architecture.norm_epsilon != _EPSILON:
        raise BadConfig(f"{architecture.name}: its norms have the epsilon {architecture.norm_epsilon}, OLMo's {_EPSILON}")
    return config_fields.written(architecture) | {
        "attention_bias": False,
        "clip_qkv": architecture.clip_qkv,
        **config_fields.padding(architecture, 1),
    }


def _read_olmo(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(
        config | {"rms_norm_eps": _EPSILON},
        name,
        "olmo",
        absent=_ABSENT,
        normalization="LayerNorm",
        layernorm_parameters="none",
        clip_qkv=config.get("clip_qkv"),
    )


OLMO = ModelType("olmo", "OlmoForCausalLM", _write_olmo, _read_olmo)
OLMO2 = ModelType("olmo2", "Olmo2ForCausalLM", _write_olmo2, _read_olmo2)
OLMO3 = ModelType("olmo3", "Olmo3ForCausalLM", _write_olmo3, _read_olmo3)
OLMOE = ModelType("olmoe", "OlmoeForCausalLM", _write_olmoe, _read_olmoe)
