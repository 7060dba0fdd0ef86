"""EXAONE 4 in transformers: OLMo 2's norms behind the layers, and norms of queries and keys per head.

With windows, on three of four layers, the layers without a window rotate nothing. Published files write that pattern as "LLLG".
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType

_NAME = "exaone4"
_PATTERN = "sliding_window_pattern"


def _write(architecture: Architecture) -> dict[str, Any]:
    window = architecture.sliding_window
    if architecture.no_rope_freq != architecture.window_attn_skip_freq:
        raise BadConfig(f"{architecture.name}: the layers without a window are not the layers without RoPE")
    return config_fields.written(architecture) | {
        "sliding_window": window,
        _PATTERN: (architecture.window_attn_skip_freq or architecture.num_layers + 1) if window else None,
        "layer_types": config_fields.layer_types(architecture),
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    window, pattern, frequency = config["sliding_window"], config[_PATTERN], None
    if window:
        frequency = len(pattern) if isinstance(pattern, str) else pattern
        frequency = config_fields.window_frequency(config, frequency) if config.get("layer_types") else frequency
    return config_fields.read(
        config,
        name,
        _NAME,
        norm_placement="post",
        qk_layernorm=True,
        sliding_window=window,
        window_attn_skip_freq=frequency,
        no_rope_freq=frequency,
    )


EXAONE4 = ModelType(
    _NAME,
    "Exaone4ForCausalLM",
    _write,
    _read,
    defaults={"sliding_window": 4096, _PATTERN: 4, "num_key_value_heads": 32, "rms_norm_eps": 1e-5},
)
