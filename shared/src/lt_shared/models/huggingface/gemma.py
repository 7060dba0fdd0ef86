"""Gemma, Gemma 2 and Gemma 3 in transformers.

All have norms that multiply by 1 + weight, a gate by GELU, and embeddings times the root of the hidden size. Gemma 2 and 3 have
norms before and behind attention and MLP, and divide scores by the root of `query_pre_attn_scalar`. Gemma 2 caps scores and
logits; Gemma 3 has norms of queries and keys instead, and another rotary base in the layers with a window. From 4B on, Gemma 3 is
published with a vision tower, as `gemma3`; its language model is `gemma3_text`, the type that is read and written.
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields, rope_parameters
from lt_shared.models.huggingface.config_fields import ModelType

_GELU = "gelu_pytorch_tanh"
_ABSENT = {"attention_bias": False, "use_bidirectional_attention": False}
# transformers has the setting for Gemma 3, too, and computes without it.
_ABSENT_3 = _ABSENT | {"attn_logit_softcapping": None}
_COMMON = {
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "hidden_activation": _GELU,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_GEMMA1 = {"head_dim": 256, "num_key_value_heads": 16, "hidden_act": _GELU, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}
_GEMMA2 = _COMMON | {
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3 = _COMMON | {"vocab_size": 262208, "max_position_embeddings": 131072}
_GLOBAL_BASE, _LOCAL_BASE = 1000000.0, 10000.0
# Every so many layers, one has no window.
_PATTERN_2, _PATTERN_3 = 2, 6
_LOCAL_FIELD = "rope_local_base_freq"


def _write_gemma1(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {"hidden_act": _GELU, "hidden_activation": _GELU, "attention_bias": False}


def _read_gemma1(config: dict[str, Any], name: str) -> Architecture:
    # The first files say "gelu" and mean the tanh approximation, as transformers reads them.
    activation = _GELU if config["hidden_act"] == "gelu" else config["hidden_act"]
    return config_fields.read(
        config | {"hidden_act": activation},
        name,
        "gemma",
        absent=_ABSENT,
        activation=_GELU,
        activation_here="gelu_tanh",
        layernorm_zero_centered_gamma=True,
        embedding_multiplier=config["hidden_size"] ** 0.5,
    )


def _write(architecture: Architecture) -> dict[str, Any]:
    scale = architecture.softmax_scale or architecture.kv_channels**-0.5
    return config_fields.written(architecture) | {
        "hidden_act": _GELU,
        "hidden_activation": _GELU,
        "attention_bias": False,
        "query_pre_attn_scalar": round(scale**-2),
        "attn_logit_softcapping": architecture.attn_logit_softcapping,
        "final_logit_softcapping": architecture.final_logit_softcapping,
        # transformers makes the mask of a window for a model without one, too.
        "sliding_window": architecture.sliding_window or _COMMON["sliding_window"],
        "layer_types": config_fields.layer_types(architecture),
    }


def _read(
    config: dict[str, Any],
    name: str,
    kind: str,
    pattern: int,
    absent: dict[str, Any],
    local_base: float | None = None,
    **family: Any,
) -> Architecture:
    """Read the settings that Gemma 2 and 3 have alike, and `family`; `local_base` is the rotary base of layers with a window."""
    frequency = config_fields.window_frequency(config, pattern)
    window = config["sliding_window"] if frequency != 1 else None
    if window is None and frequency != 1:
        raise BadConfig(f"{name}: layers with a window, and sliding_window is null", "give its size")
    scalar, head = config["query_pre_attn_scalar"], config["head_dim"]
    return config_fields.read(
        # transformers reads Gemma's activation from this field and ignores the usual one.
        config | {"hidden_act": config["hidden_activation"]},
        name,
        kind,
        absent=absent,
        activation=_GELU,
        activation_here="gelu_tanh",
        norm_placement="both",
        layernorm_zero_centered_gamma=True,
        embedding_multiplier=config["hidden_size"] ** 0.5,
        softmax_scale=None if scalar == head else scalar**-0.5,
        attn_logit_softcapping=config.get("attn_logit_softcapping"),
        final_logit_softcapping=config.get("final_logit_softcapping"),
        sliding_window=window,
        window_attn_skip_freq=frequency if window else None,
        local_rotary_base=local_base if window else None,
        **family,
    )


def _read_gemma2(config: dict[str, Any], name: str) -> Architecture:
    return _read(config, name, "gemma2", _PATTERN_2, _ABSENT)


def _write_gemma3(architecture: Architecture) -> dict[str, Any]:
    rotary = (architecture.rotary_base, architecture.rope_scaling, architecture.local_rotary_base)
    return _write(architecture) | {
        "sliding_window_pattern": architecture.window_attn_skip_freq or _PATTERN_3,
        _LOCAL_FIELD: architecture.local_rotary_base or architecture.rotary_base,
        **rope_parameters.written_by_layer_type(*rotary),
    }


def _read_gemma3(config: dict[str, Any], name: str) -> Architecture:
    base, scaling, local_base = rope_parameters.read_by_layer_type(config, name, _GLOBAL_BASE, _LOCAL_FIELD, _LOCAL_BASE)
    # transformers 5 writes the second name.
    patterns: list[Any] = [config[field] for field in ("sliding_window_pattern", "_sliding_window_pattern") if config.get(field)]
    return _read(
        config,
        name,
        "gemma3",
        patterns[0] if patterns else _PATTERN_3,
        _ABSENT_3,
        local_base,
        rotary_base=base,
        rope_scaling=scaling,
        qk_layernorm=True,
    )


def _write_multimodal(architecture: Architecture) -> dict[str, Any]:
    raise BadConfig(
        f"{architecture.name}: a model with a vision tower is read, and not written", "gemma3_text has the same text part"
    )


def _language_model(config: dict[str, Any]) -> dict[str, Any]:
    """Return the language model's settings from the settings of a vision model."""
    tied = {"tie_word_embeddings": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
    return dict(config["text_config"]) | tied


GEMMA = ModelType("gemma", "GemmaForCausalLM", _write_gemma1, _read_gemma1, defaults=_GEMMA1)
GEMMA2 = ModelType("gemma2", "Gemma2ForCausalLM", _write, _read_gemma2, defaults=_GEMMA2)
GEMMA3_TEXT = ModelType("gemma3_text", "Gemma3ForCausalLM", _write_gemma3, _read_gemma3, defaults=_GEMMA3)
GEMMA3 = ModelType(
    "gemma3",
    "Gemma3ForConditionalGeneration",
    _write_multimodal,
    _read_gemma3,
    language_model=_language_model,
    defaults=_GEMMA3,
)
