"""Qwen3.5 in transformers: Qwen3-Next's layers, with a feed-forward layer in the dense models.

The published models have a vision tower, as `qwen3_5` and `qwen3_5_moe`; their language models are `qwen3_5_text` and
`qwen3_5_moe_text`, the types that are written. A dense model's type tells it from a Qwen3-Next, which has experts.
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields, gated_delta, routed_experts
from lt_shared.models.huggingface.config_fields import ModelType
from lt_shared.models.huggingface.qwen3_next import read_layers

_DENSE, _MIXTURE = "qwen3_5_text", "qwen3_5_moe_text"
_ABSENT = config_fields.ABSENT | {"attn_output_gate": True, "output_gate_type": "swish"}


def _write_dense(architecture: Architecture) -> dict[str, Any]:
    gates = {"attention_bias": False, "attn_output_gate": architecture.attention_output_gate}
    return {**config_fields.written_partly_rotated(architecture), **gated_delta.written(architecture), **gates}


def _write_mixture(architecture: Architecture) -> dict[str, Any]:
    return {
        **_write_dense(architecture),
        "shared_expert_intermediate_size": architecture.moe_shared_expert_intermediate_size,
        **routed_experts.qwen_written(architecture),
    }


def _read_dense(config: dict[str, Any], name: str) -> Architecture:
    return read_layers(config, name, _DENSE, absent=_ABSENT)


def _read_mixture(config: dict[str, Any], name: str) -> Architecture:
    routed_experts.check_in_every_layer(config, name)
    config = config | {"intermediate_size": config["moe_intermediate_size"], "norm_topk_prob": True}
    return read_layers(
        config,
        name,
        _MIXTURE,
        absent=_ABSENT,
        model_type=_MIXTURE,
        moe_ffn_hidden_size=config["moe_intermediate_size"],
        moe_shared_expert_intermediate_size=config["shared_expert_intermediate_size"],
        moe_shared_expert_gate=True,
        **routed_experts.read(config, name, topk=8, aux_loss_coeff=0.001),
    )


def _write_multimodal(architecture: Architecture) -> dict[str, Any]:
    raise BadConfig(
        f"{architecture.name}: a model with a vision tower is read, and not written",
        f"{_DENSE} and {_MIXTURE} have the text part",
    )


def _language_model(config: dict[str, Any]) -> dict[str, Any]:
    """Return the language model's settings from the settings of a vision model."""
    tied = {"tie_word_embeddings": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
    return dict(config["text_config"]) | tied


_DEFAULTS = {**gated_delta.DEFAULTS, "head_dim": 256, "rms_norm_eps": 1e-6, "vocab_size": 248320}
_DENSE_DEFAULTS = _DEFAULTS | {"num_key_value_heads": 4, "intermediate_size": 12288}
_MIXTURE_DEFAULTS = _DEFAULTS | {
    "num_key_value_heads": 2,
    "num_experts": 256,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
QWEN3_5_TEXT = ModelType(
    _DENSE, "Qwen3_5ForCausalLM", _write_dense, _read_dense, defaults=_DENSE_DEFAULTS, layer_types=gated_delta.layer_types
)
QWEN3_5_MOE_TEXT = ModelType(
    _MIXTURE,
    "Qwen3_5MoeForCausalLM",
    _write_mixture,
    _read_mixture,
    defaults=_MIXTURE_DEFAULTS,
    layer_types=gated_delta.layer_types,
)
QWEN3_5 = ModelType(
    "qwen3_5",
    "Qwen3_5ForConditionalGeneration",
    _write_multimodal,
    _read_dense,
    language_model=_language_model,
    defaults=_DENSE_DEFAULTS,
    layer_types=gated_delta.layer_types,
)
QWEN3_5_MOE = ModelType(
    "qwen3_5_moe",
    "Qwen3_5MoeForConditionalGeneration",
    _write_multimodal,
    _read_mixture,
    language_model=_language_model,
    defaults=_MIXTURE_DEFAULTS,
    layer_types=gated_delta.layer_types,
)
