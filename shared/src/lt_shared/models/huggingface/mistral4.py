"""Mistral 4 in transformers: DeepSeek's latent attention with queries whose temperature grows with the position, and experts.

The router normalises a softmax over the chosen experts. The published model has a vision tower (`mistral3.py`).
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields, deepseek, ministral3
from lt_shared.models.huggingface.config_fields import ABSENT, ModelType

NAME = "mistral4"
_ROTATED = "partial_rotary_factor"
_SPELLINGS = ("rope_parameters", "rope_scaling")
_ROPE = ministral3.ROPE | {"rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192}


def _rotated(config: dict[str, Any]) -> float:
    """Return the part of a head's channels that is rotated, which transformers wants in the rotary settings, too."""
    return float(config["qk_rope_head_dim"] / (config["qk_rope_head_dim"] + config["qk_nope_head_dim"]))


def _write(architecture: Architecture) -> dict[str, Any]:
    fields = deepseek.written(architecture)
    added = {ministral3.BETA: architecture.query_temperature_beta, _ROTATED: _rotated(fields)}
    ropes = {field: dict(fields[field] or {}) | added for field in _SPELLINGS}
    del fields["head_dim"]
    return (
        fields
        | ropes
        | {
            "rope_interleave": True,
            "norm_topk_prob": True,
            "n_group": 1,
            "topk_group": 1,
            **config_fields.padding(architecture, 11),
        }
    )


def _read(config: dict[str, Any], name: str) -> Architecture:
    if config["n_group"] != config["topk_group"]:
        raise BadConfig(f"{name}: n_group is {config['n_group']}, and a softmax router here does not choose among groups")
    if not any(config.get(field) for field in _SPELLINGS):
        config = config | {"rope_parameters": _ROPE}
    ropes = {field: dict(config[field]) for field in _SPELLINGS if config.get(field)}
    factors = {rope.pop(_ROTATED, None) for rope in ropes.values()} - {None}
    if factors - {_rotated(config)}:
        raise BadConfig(f"{name}: {_ROTATED} is {factors}, and heads rotate qk_rope_head_dim channels: {_rotated(config)}")
    return deepseek.read(
        config | ropes,
        name,
        NAME,
        absent=ABSENT | {"norm_topk_prob": True, "rope_interleave": True},
        query_temperature_beta=ministral3.temperature(ropes, name),
    )


MISTRAL4 = ModelType(
    NAME,
    "Mistral4ForCausalLM",
    _write,
    _read,
    aliases={"num_local_experts": "n_routed_experts"},
    defaults={
        "num_key_value_heads": 32,
        "q_lora_rank": 1024,
        "n_shared_experts": 1,
        "first_k_dense_replace": 0,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1048576,
    },
)
