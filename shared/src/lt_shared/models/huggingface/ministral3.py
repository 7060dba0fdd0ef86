"""Ministral 3 in transformers: Mistral with YaRN, and queries whose temperature grows with the position.

It is published with a vision tower (`mistral3.py`).
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType

_NAME = "ministral3"
BETA = "llama_4_scaling_beta"
ROPE = {
    "type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    BETA: 0.1,
}


def _write(architecture: Architecture) -> dict[str, Any]:
    fields = config_fields.written(architecture)
    for field in ("rope_parameters", "rope_scaling"):
        fields[field] = dict(fields[field] or {}) | {BETA: architecture.query_temperature_beta}
    return fields | {"sliding_window": architecture.sliding_window, **config_fields.padding(architecture, 11)}


def temperature(ropes: dict[str, dict[str, Any]], name: str) -> float:
    """Return the beta of the queries' temperature in the rotary settings `ropes`. Raises BadConfig if they have none, or two."""
    betas = {rope[BETA] for rope in ropes.values() if rope.get(BETA) is not None}
    if len(betas) != 1:
        values = " and ".join(map(repr, betas)) or "missing"
        raise BadConfig(f"{name}: {BETA} is {values}, and transformers reads one value from rope_parameters")
    return float(betas.pop())


def _read(config: dict[str, Any], name: str) -> Architecture:
    if not any(config.get(field) for field in ("rope_parameters", "rope_scaling")):
        config = config | {"rope_parameters": ROPE}
    ropes = {field: dict(config[field]) for field in ("rope_parameters", "rope_scaling") if config.get(field)}
    return config_fields.read(
        config,
        name,
        _NAME,
        sliding_window=config.get("sliding_window"),
        query_temperature_beta=temperature(ropes, name),
    )


MINISTRAL3 = ModelType(
    _NAME,
    "Ministral3ForCausalLM",
    _write,
    _read,
    defaults={"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 262144},
)
