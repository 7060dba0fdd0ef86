"""Llama in transformers, and the types that are Llama with one feature: Mistral, Qwen2, Qwen3 and Mixtral.

A model without such a feature is a Llama, as is Mistral 7B from version 0.2 on, whatever its config.json says.
"""

from typing import Any

from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType

_QWEN3_HEAD = 128


def _write_llama(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {"attention_bias": False, "mlp_bias": False}


def _read_llama(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(config, name, "llama")


def _write_mistral(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {"sliding_window": architecture.sliding_window}


def _read_mistral(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(config, name, "mistral", sliding_window=config["sliding_window"])


def _write_qwen2(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {"use_sliding_window": False}


def _read_qwen2(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(config, name, "qwen2", add_qkv_bias=True)


def _write_qwen3(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {"use_sliding_window": False, "attention_bias": False}


def _read_qwen3(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(config, name, "qwen3", qk_layernorm=True, kv_channels=config.get("head_dim") or _QWEN3_HEAD)


def _write_mixtral(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {
        "sliding_window": architecture.sliding_window,
        "num_local_experts": architecture.num_experts,
        "num_experts_per_tok": architecture.moe_router_topk,
        "router_aux_loss_coef": architecture.moe_aux_loss_coeff,
    }


def _read_mixtral(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(
        config,
        name,
        "mixtral",
        rotary_base=1000000.0,
        sliding_window=config["sliding_window"],
        num_experts=config["num_local_experts"],
        moe_router_topk=config["num_experts_per_tok"],
        moe_aux_loss_coeff=config.get("router_aux_loss_coef", 0.001),
    )


LLAMA = ModelType("llama", "LlamaForCausalLM", _write_llama, _read_llama)
MISTRAL = ModelType("mistral", "MistralForCausalLM", _write_mistral, _read_mistral, defaults={"num_key_value_heads": 8})
QWEN2 = ModelType("qwen2", "Qwen2ForCausalLM", _write_qwen2, _read_qwen2, defaults={"num_key_value_heads": 32})
QWEN3 = ModelType("qwen3", "Qwen3ForCausalLM", _write_qwen3, _read_qwen3, defaults={"num_key_value_heads": 32})
MIXTRAL = ModelType(
    "mixtral",
    "MixtralForCausalLM",
    _write_mixtral,
    _read_mixtral,
    aliases={"num_experts": "num_local_experts"},
    defaults={"num_key_value_heads": 8},
)
