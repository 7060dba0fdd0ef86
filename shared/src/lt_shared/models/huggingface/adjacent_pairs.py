"""Models in transformers whose RoPE pairs adjacent channels: Helium, ERNIE 4.5, and GLM-4 of 2024 and 2025.

lt-convert orders the channels of their queries and keys as Llama's, so the architecture does not say it and keeps the model type.
GLM-4 of 2025 (`glm4`) has norms before and behind attention and MLP, GLM-4 of 2024 (`glm`) before them.
"""

from typing import Any

from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType

_ERNIE_ABSENT = {"use_bias": False}


def _write_helium(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {"attention_bias": False, "mlp_bias": False}


def _read_helium(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(config, name, "helium", rotary_base=100000.0, model_type="helium")


def _write_ernie(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | _ERNIE_ABSENT


def _read_ernie(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(config, name, "ernie4_5", absent=_ERNIE_ABSENT, rotary_base=500000.0, model_type="ernie4_5")


def _write_glm(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written_partly_rotated(architecture) | {
        "attention_bias": architecture.add_qkv_bias,
        **config_fields.padding(architecture, 151329),
    }


def _read_glm(config: dict[str, Any], name: str, model_type: str = "glm", **family: Any) -> Architecture:
    return config_fields.read(
        config,
        name,
        model_type,
        absent={"mlp_bias": False, "use_sliding_window": False},
        rotary_percent=0.5,
        add_qkv_bias=config["attention_bias"],
        model_type=model_type,
        **family,
    )


def _read_glm4(config: dict[str, Any], name: str) -> Architecture:
    return _read_glm(config, name, "glm4", norm_placement="both")


_GLM = {"attention_bias": True, "num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1.5625e-07}
HELIUM = ModelType(
    "helium",
    "HeliumForCausalLM",
    _write_helium,
    _read_helium,
    defaults={"num_key_value_heads": 20, "head_dim": 128, "rms_norm_eps": 1e-8},
)
ERNIE4_5 = ModelType(
    "ernie4_5",
    "Ernie4_5ForCausalLM",
    _write_ernie,
    _read_ernie,
    defaults={"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": True},
)
GLM = ModelType("glm", "GlmForCausalLM", _write_glm, _read_glm, defaults=_GLM)
GLM4 = ModelType("glm4", "Glm4ForCausalLM", _write_glm, _read_glm4, defaults=_GLM)
