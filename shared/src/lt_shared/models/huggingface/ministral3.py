"""Ministral 3 in transformers: Mistral with YaRN, and queries whose temperature grows with the position.

It is published with a vision tower (model type `mistral3`), whose language model is read.
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType

_NAME = "ministral3"
BETA = "llama_4_scaling_beta"
_ROPE = {
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


def _read(config: dict[str, Any], name: str) -> Architecture:
    rope = [dict(config.get(field) or {}) for field in ("rope_parameters", "rope_scaling")]
    if not any(rope):
        config, rope = config | {"rope_parameters": _ROPE}, [_ROPE]
    betas = {place[BETA] for place in rope if place.get(BETA) is not None}
    if len(betas) != 1:
        values = " and ".join(map(repr, betas)) or "missing"
        raise BadConfig(f"{name}: {BETA} is {values}, and transformers reads one value from rope_parameters")
    return config_fields.read(
        config,
        name,
        _NAME,
        sliding_window=config.get("sliding_window"),
        query_temperature_beta=betas.pop(),
    )


def _language_model(config: dict[str, Any]) -> dict[str, Any]:
    """Return the language model's settings from the settings of a vision model. Raises BadConfig for another language model."""
    text = dict(config["text_config"])
    if text.get("model_type") != _NAME:
        raise BadConfig(f"the language model in a mistral3 is a {text.get('model_type')!r}, only {_NAME} is known here")
    tied = {"tie_word_embeddings": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
    return text | tied


def _write_multimodal(architecture: Architecture) -> dict[str, Any]:
    raise BadConfig(
        f"{architecture.name}: a model with a vision tower is read, and not written", "ministral3 has the same text part"
    )


_DEFAULTS = {"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 262144}
MINISTRAL3 = ModelType(_NAME, "Ministral3ForCausalLM", _write, _read, defaults=_DEFAULTS)
MISTRAL3 = ModelType(
    "mistral3",
    "Mistral3ForConditionalGeneration",
    _write_multimodal,
    _read,
    language_model=_language_model,
    defaults=_DEFAULTS,
)
