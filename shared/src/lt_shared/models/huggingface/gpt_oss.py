"""OpenAI's gpt-oss in transformers (20B and 120B): windows on every other layer, sinks, biases, YaRN, a clamped SwiGLU.

Some published files also have the fields of OpenAI's configuration (`initial_context_length`, `rope_ntk_beta` ...), which
transformers does not read. They must agree with the fields that it reads.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import CLAMPED_SWIGLU_ALPHA, CLAMPED_SWIGLU_LIMIT, Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType
from lt_shared.models.rope_scaling import YarnScaling

SLIDING, FULL = "sliding_attention", "full_attention"
_DEFAULTS = {
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "head_dim": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
}
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_FIXED = {"attention_bias": True, "swiglu_alpha": CLAMPED_SWIGLU_ALPHA, "swiglu_limit": CLAMPED_SWIGLU_LIMIT}
# OpenAI's names of YaRN's numbers.
_OPENAI = {
    "initial_context_length": "original_max_position_embeddings",
    "rope_scaling_factor": "factor",
    "rope_ntk_beta": "beta_fast",
    "rope_ntk_alpha": "beta_slow",
}


def _write(architecture: Architecture) -> dict[str, Any]:
    windows = [architecture.window(layer) for layer in range(architecture.num_layers)]
    return config_fields.written(architecture) | {
        "attention_bias": True,
        "swiglu_limit": CLAMPED_SWIGLU_LIMIT,
        # transformers makes the mask of a window for a model without one, too.
        "sliding_window": architecture.sliding_window or _DEFAULTS["sliding_window"],
        "layer_types": [SLIDING if window else FULL for window in windows],
        "num_local_experts": architecture.num_experts,
        "num_experts_per_tok": architecture.moe_router_topk,
        "router_aux_loss_coef": architecture.moe_aux_loss_coeff,
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    config_with_rope = config | _rope(config, name)
    window, skip = _windows(config_with_rope, name)
    plain = config_fields.read(
        config_with_rope,
        name,
        "gpt_oss",
        absent=_FIXED,
        rotary_base=150000.0,
        add_bias_linear=True,
        attention_sinks=True,
        activation="silu",
        sliding_window=window,
        window_attn_skip_freq=skip,
        num_experts=config_fields.either(config, name, "num_local_experts", "num_experts"),
        moe_router_topk=_chosen(config, name),
        moe_aux_loss_coeff=config.get("router_aux_loss_coef", 0.001),
    )
    architecture = dataclasses.replace(plain, activation="clamped_swiglu")
    _check_openai_names(config, architecture, name)
    return architecture


def _rope(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """transformers' YaRN, where the file has no scaling."""
    if config.get("rope_parameters") or config.get("rope_scaling"):
        return {}
    if "rope_scaling" in config:
        raise BadConfig(
            f"{name}: rope_scaling is null, which transformers 4 reads as no scaling, and 5 as the published models' YaRN",
            'add rope_parameters: {"rope_type": "default"} for no scaling, or remove rope_scaling for YaRN',
        )
    return {"rope_parameters": _YARN}


def _chosen(config: Mapping[str, Any], name: str) -> int:
    """Return the number of experts that a token goes to. transformers reads only one of the two names."""
    if config.get("num_experts_per_tok") is None and config.get("experts_per_token") not in (None, 4):
        raise BadConfig(f"{name}: experts_per_token, but no num_experts_per_tok, which transformers reads", "rename it")
    chosen = {**config, "num_experts_per_tok": config.get("num_experts_per_tok", 4)}
    return int(config_fields.either(chosen, name, "num_experts_per_tok", "experts_per_token"))


def _windows(config: Mapping[str, Any], name: str) -> tuple[int | None, int | None]:
    """The window, and Megatron's n for "every n-th layer has none"; another pattern is refused by whoever compares the list."""
    layers = config["num_hidden_layers"]
    every_other = [FULL if layer % 2 else SLIDING for layer in range(layers)]
    kinds = list(config.get("layer_types") or every_other)
    if SLIDING not in kinds:
        return None, None
    if not config["sliding_window"]:
        raise BadConfig(f"{name}: layers with a window, and sliding_window is {config['sliding_window']!r}", "give its size")
    if kinds == every_other:
        return config["sliding_window"], 2
    return config["sliding_window"], kinds.index(FULL) + 1 if FULL in kinds else None


def _check_openai_names(config: Mapping[str, Any], architecture: Architecture, name: str) -> None:
    scaling = architecture.rope_scaling
    for field, meaning in _OPENAI.items():
        read = getattr(scaling, meaning) if isinstance(scaling, YarnScaling) else None
        if config.get(field) not in (None, read):
            raise BadConfig(
                f"{name}: {field} is {config[field]!r}, and {meaning} of the rotary scaling, which transformers reads, {read!r}",
                f"remove {field}, or correct it",
            )


GPT_OSS = ModelType("gpt_oss", "GptOssForCausalLM", _write, _read, defaults=_DEFAULTS)
