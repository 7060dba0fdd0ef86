"""Bamba in transformers: Mamba-2 in place of attention in most layers, each with an MLP; half of every head is rotated."""

from typing import Any

from lt_shared.models.architecture import Architecture
from lt_shared.models.architecture.sizes import ATTENTION
from lt_shared.models.huggingface import config_fields, mamba
from lt_shared.models.huggingface.config_fields import ModelType
from lt_shared.models.huggingface.rope_parameters import FULL

_NAME = "bamba"
# transformers ignores any other in config.json.
_ROTATED_PART = 0.5


def _write(architecture: Architecture) -> dict[str, Any]:
    return {
        **config_fields.written_partly_rotated(architecture),
        **mamba.written(architecture),
        "attn_layer_indices": list(architecture.mixers[ATTENTION]),
        "attention_bias": False,
        "mlp_bias": False,
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    attention = config.get("attn_layer_indices") or ()
    types = [FULL if layer in attention else mamba.LINEAR for layer in range(config["num_hidden_layers"])]
    return config_fields.read(config, name, _NAME, rotary_percent=_ROTATED_PART, mamba=mamba.read(config, name, _NAME, types))


BAMBA = ModelType(
    _NAME,
    "BambaForCausalLM",
    _write,
    _read,
    defaults={**mamba.DEFAULTS, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 262144},
    aliases={"layer_types": "layers_block_type"},
    layer_types=mamba.layer_types,
)
