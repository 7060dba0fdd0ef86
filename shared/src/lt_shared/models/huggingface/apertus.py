"""Apertus in transformers: Qwen3's attention, and an MLP without gates whose activation, xIELU, learns two numbers per layer."""

from typing import Any

from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType

_NAME = "apertus"
_ABSENT = {"attention_bias": False, "mlp_bias": False, "post_norm": False, "qk_norm": True}
_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12000000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def _write(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {
        **_ABSENT,
        "hidden_act": "xielu",
        **config_fields.padding(architecture, 3),
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    has_rope = any(config.get(field) for field in ("rope_parameters", "rope_scaling", "rope_theta"))
    return config_fields.read(
        config if has_rope else config | {"rope_parameters": _ROPE},
        name,
        _NAME,
        absent=_ABSENT,
        activation="xielu",
        activation_here="xielu",
        gated_linear_unit=False,
        qk_layernorm=True,
        rotary_base=12000000.0,
    )


APERTUS = ModelType(_NAME, "ApertusForCausalLM", _write, _read, defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 65536})
