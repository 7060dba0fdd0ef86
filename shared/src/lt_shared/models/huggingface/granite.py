"""Granite 3 in transformers: Llama with multipliers, of embeddings, of what layers put out, of attention scores and of logits."""

from typing import Any

from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType


def _write(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {
        "attention_bias": False,
        "mlp_bias": False,
        "embedding_multiplier": architecture.embedding_multiplier,
        "residual_multiplier": architecture.residual_multiplier,
        "attention_multiplier": architecture.softmax_scale or architecture.kv_channels**-0.5,
        "logits_scaling": architecture.logits_scaling,
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(
        config,
        name,
        "granite",
        embedding_multiplier=config.get("embedding_multiplier", 1.0),
        residual_multiplier=config.get("residual_multiplier", 1.0),
        softmax_scale=config.get("attention_multiplier", 1.0),
        logits_scaling=config.get("logits_scaling", 1.0),
    )


GRANITE = ModelType("granite", "GraniteForCausalLM", _write, _read)
