"""Cohere's Command R and Command A in transformers: attention and MLP in parallel, LayerNorm without biases, scaled logits.

RoPE pairs adjacent channels in their files; lt-convert orders the channels as Llama's. Command R7B and A (`cohere2`) have windows
on three of four layers, and the layers without a window rotate nothing.
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType

_PATTERN = "sliding_window_pattern"
_ABSENT: dict[str, Any] = {"attention_bias": False, "use_qk_norm": False}
_DEFAULTS = {"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "tie_word_embeddings": True}


def _write(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {
        "attention_bias": False,
        "layer_norm_eps": architecture.norm_epsilon,
        "logit_scale": 1 / architecture.logits_scaling,
        **config_fields.padding(architecture, 0),
    }


def _read(config: dict[str, Any], name: str, kind: str, rotary_base: float, **family: Any) -> Architecture:
    return config_fields.read(
        config | {"rms_norm_eps": config["layer_norm_eps"]},
        name,
        kind,
        absent=_ABSENT,
        rotary_base=rotary_base,
        normalization="LayerNorm",
        layernorm_parameters="weight",
        parallel_layers=True,
        logits_scaling=1 / config["logit_scale"],
        **family,
    )


def _write_cohere(architecture: Architecture) -> dict[str, Any]:
    return _write(architecture) | {"use_qk_norm": False}


def _read_cohere(config: dict[str, Any], name: str) -> Architecture:
    return _read(config, name, "cohere", 500000.0)


def _write_cohere2(architecture: Architecture) -> dict[str, Any]:
    if architecture.no_rope_freq != (architecture.window_attn_skip_freq if architecture.sliding_window else 1):
        raise BadConfig(f"{architecture.name}: the layers without a window are not the layers without RoPE")
    return _write(architecture) | {
        "sliding_window": architecture.sliding_window or 4096,
        _PATTERN: architecture.window_attn_skip_freq or 1,
        "layer_types": config_fields.layer_types(architecture),
    }


def _read_cohere2(config: dict[str, Any], name: str) -> Architecture:
    pattern = config[_PATTERN]
    frequency = config_fields.window_frequency(config, pattern) if config.get("layer_types") else pattern
    window = config["sliding_window"] if frequency != 1 else None
    if window is None and frequency != 1:
        raise BadConfig(f"{name}: layers with a window, and sliding_window is null", "give its size")
    return _read(
        config,
        name,
        "cohere2",
        10000.0,
        sliding_window=window,
        window_attn_skip_freq=frequency if window else None,
        no_rope_freq=frequency,
    )


COHERE = ModelType("cohere", "CohereForCausalLM", _write_cohere, _read_cohere, defaults=_DEFAULTS)
COHERE2 = ModelType(
    "cohere2",
    "Cohere2ForCausalLM",
    _write_cohere2,
    _read_cohere2,
    defaults=_DEFAULTS | {"sliding_window": 4096, _PATTERN: 4},
)
