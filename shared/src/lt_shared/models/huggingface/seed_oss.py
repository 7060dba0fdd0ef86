"""Seed-OSS in transformers: Qwen2 with a head size of its own.

With the same sizes a model would be a Qwen2, so the architecture keeps the model type.
"""

from typing import Any

from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType

_NAME = "seed_oss"
_ABSENT = {"attention_out_bias": False, "mlp_bias": False}


def _write(architecture: Architecture) -> dict[str, Any]:
    # transformers has dropout by default.
    fields = {"attention_bias": architecture.add_qkv_bias, "residual_dropout": 0.0}
    return config_fields.written(architecture) | _ABSENT | fields


def _read(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(config, name, _NAME, absent=_ABSENT, add_qkv_bias=config["attention_bias"], model_type=_NAME)


SEED_OSS = ModelType(
    _NAME,
    "SeedOssForCausalLM",
    _write,
    _read,
    defaults={"attention_bias": True, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6},
)
