"""Qwen3-Next in transformers: gated delta in three of four layers, gated attention in the fourth, experts in all of them.

All norms multiply by 1 + weight, but the norm of gated delta's output multiplies by the weight. transformers leaves out the
layers of multi-token prediction that the published files have.
"""

from typing import Any

from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields, gated_delta, routed_experts
from lt_shared.models.huggingface.config_fields import ModelType

_NAME = "qwen3_next"
_ROTATED_PART = 0.25


def _write(architecture: Architecture) -> dict[str, Any]:
    return {
        **config_fields.written_partly_rotated(architecture),
        **gated_delta.written(architecture),
        "attention_bias": False,
        "shared_expert_intermediate_size": architecture.moe_shared_expert_intermediate_size,
        **routed_experts.qwen_written(architecture),
    }


def read_layers(config: dict[str, Any], name: str, kind: str, **family: Any) -> Architecture:
    """Read a model of type `kind` with Qwen3-Next's mixers; `family` has its other fields, as `config_fields.read` takes them."""
    return config_fields.read(
        config,
        name,
        kind,
        rotary_percent=_ROTATED_PART,
        qk_layernorm=True,
        layernorm_zero_centered_gamma=True,
        attention_output_gate=True,
        gated_delta=gated_delta.read(config, name),
        **family,
    )


def _read(config: dict[str, Any], name: str) -> Architecture:
    routed_experts.check_in_every_layer(config, name)
    return read_layers(
        config,
        name,
        _NAME,
        moe_ffn_hidden_size=config["moe_intermediate_size"],
        moe_shared_expert_intermediate_size=config["shared_expert_intermediate_size"],
        moe_shared_expert_gate=True,
        **routed_experts.read(config, name, topk=10, aux_loss_coeff=0.001),
    )


_DEFAULTS = {
    **gated_delta.DEFAULTS,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "norm_topk_prob": True,
    "num_experts": 512,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
QWEN3_NEXT = ModelType(_NAME, "Qwen3NextForCausalLM", _write, _read, defaults=_DEFAULTS, layer_types=gated_delta.layer_types)
