"""Falcon-H1 in transformers: Mamba-2 and attention side by side in every layer, with factors of nearly every projection."""

import math
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture, SideBySide
from lt_shared.models.huggingface import config_fields, mamba
from lt_shared.models.huggingface.config_fields import ABSENT, ModelType

_NAME, _CLASS = "falcon_h1", "FalconH1ForCausalLM"
_FACTORS = {
    "ssm_in_multiplier": "mamba_input",
    "ssm_out_multiplier": "mamba_output",
    "attention_in_multiplier": "attention_input",
    "key_multiplier": "attention_keys",
    "attention_out_multiplier": "attention_output",
}
_PARTS, _MLP = "ssm_multipliers", "mlp_multipliers"


def _write(architecture: Architecture) -> dict[str, Any]:
    factors, part = architecture.side_by_side, architecture.mamba
    if factors is None or part is None:
        raise BadConfig(f"{architecture.name}: no Mamba-2 beside attention")
    return {
        **config_fields.written(architecture),
        **mamba.sizes_written(part),
        "mamba_d_ssm": part.inner_size,
        "mamba_rms_norm": part.has_norm,
        "mamba_norm_before_gate": False,
        **dict.fromkeys(("projectors_bias", "attention_bias", "mlp_bias"), False),
        **{field: getattr(factors, name) for field, name in _FACTORS.items()},
        _PARTS: list(factors.mamba_parts),
        _MLP: [factors.mlp_gates, factors.mlp_output],
        "embedding_multiplier": architecture.embedding_multiplier,
        "lm_head_multiplier": _inverse(architecture.logits_scaling),
    }


def _inverse(scaling: float) -> float:
    """The factor whose inverse is exactly `scaling`, or the nearest."""
    factor = 1 / scaling
    nearest = (factor, math.nextafter(factor, 0), math.nextafter(factor, math.inf))
    return next((value for value in nearest if 1 / value == scaling), factor)


def _read(config: dict[str, Any], name: str) -> Architecture:
    if config["mamba_rms_norm"] and config["mamba_norm_before_gate"]:
        raise BadConfig(f"{name}: mamba_norm_before_gate is True, and the norms of Mamba layers here come behind the gate")
    width = config["mamba_d_ssm"]
    types = [mamba.LINEAR] * config["num_hidden_layers"]
    part = mamba.read(
        config, name, _NAME, types, width=config["mamba_expand"] * config["hidden_size"] if width is None else width
    )
    gates, output = config[_MLP] or (1.0, 1.0)
    factors = SideBySide(
        mamba_parts=tuple(config[_PARTS] or SideBySide.mamba_parts),
        mlp_gates=gates,
        mlp_output=output,
        **{field: config[name] for name, field in _FACTORS.items()},
    )
    return config_fields.read(
        config,
        name,
        _NAME,
        absent=ABSENT | {"projectors_bias": False},
        mamba=part,
        side_by_side=factors,
        embedding_multiplier=config["embedding_multiplier"],
        logits_scaling=1 / config["lm_head_multiplier"],
    )


FALCON_H1 = ModelType(
    _NAME,
    _CLASS,
    _write,
    _read,
    defaults={
        **mamba.DEFAULTS,
        **dict.fromkeys((*_FACTORS, "embedding_multiplier", "lm_head_multiplier"), 1.0),
        _PARTS: None,
        _MLP: None,
        "mamba_d_ssm": 1024,
        "mamba_rms_norm": False,
        "mamba_norm_before_gate": True,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "num_key_value_heads": 8,
    },
    layer_types=lambda architecture: ["hybrid"] * architecture.num_layers,
)
