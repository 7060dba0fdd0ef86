"""LFM2 in transformers: short convolutions in most layers, in the others attention with norms of queries and keys.

`lfm2` makes `intermediate_size` smaller unless `block_auto_adjust_ff_dim` is false. `lfm2_moe` has experts behind the first
`num_dense_layers` layers, chosen by sigmoids and balancing biases. transformers adds 1e-6 to the sum of the chosen sigmoids
before it divides by the sum, and here nothing is added: a relative difference of 1e-6 in the output of experts.
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture, ShortConvolution
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType
from lt_shared.models.huggingface.rope_parameters import FULL

_CONVOLUTION = "conv"
_DENSE, _MOE = "lfm2", "lfm2_moe"
_ROTARY_BASE = 1000000.0


def _layer_types(architecture: Architecture) -> list[str]:
    layers = architecture.short_convolution.layers if architecture.short_convolution else ()
    return config_fields.types_of_layers(architecture, layers, _CONVOLUTION)


def _written(architecture: Architecture) -> dict[str, Any]:
    if architecture.short_convolution is None:
        raise BadConfig(f"{architecture.name}: no layer has a short convolution")
    return config_fields.written(architecture) | {
        "norm_eps": architecture.norm_epsilon,
        "layer_types": _layer_types(architecture),
        "conv_L_cache": architecture.short_convolution.taps,
        "conv_bias": False,
    }


def _write(architecture: Architecture) -> dict[str, Any]:
    return _written(architecture) | {"block_auto_adjust_ff_dim": False}


def _write_experts(architecture: Architecture) -> dict[str, Any]:
    return _written(architecture) | {
        "moe_intermediate_size": architecture.expert_size,
        "num_dense_layers": architecture.moe_first_dense_layers,
        "num_experts": architecture.num_experts,
        "num_experts_per_tok": architecture.moe_router_topk,
        "use_expert_bias": architecture.moe_router_enable_expert_bias,
        "routed_scaling_factor": architecture.moe_router_topk_scaling_factor,
        "norm_topk_prob": True,
    }


def _convolution(config: dict[str, Any], name: str) -> ShortConvolution:
    """Return the layers with convolutions. Raises BadConfig for another kind of layer, or another number of layers."""
    count, types = config["num_hidden_layers"], config.get("layer_types")
    if types is None:
        # None is attention in every layer, which ShortConvolution refuses; so does transformers' lfm2_moe without the list.
        attention = config.get("full_attn_idxs")
        attention = range(count) if attention is None else attention
        types = [FULL if layer in attention else _CONVOLUTION for layer in range(count)]
    return ShortConvolution(config_fields.layers_of_type(types, count, _CONVOLUTION, name), config["conv_L_cache"])


def _read_layers(config: dict[str, Any], name: str, kind: str, **family: Any) -> Architecture:
    return config_fields.read(
        config | {"rms_norm_eps": config["norm_eps"]},
        name,
        kind,
        absent={"conv_bias": False},
        rotary_base=_ROTARY_BASE,
        qk_layernorm=True,
        short_convolution=_convolution(config, name),
        **family,
    )


def _read(config: dict[str, Any], name: str) -> Architecture:
    return _read_layers(config | {"intermediate_size": _feed_forward_size(config)}, name, _DENSE)


def _feed_forward_size(config: dict[str, Any]) -> int:
    width: int = config["intermediate_size"]
    if not config["block_auto_adjust_ff_dim"]:
        return width
    width, factor, multiple = int(2 * width / 3), config["block_ffn_dim_multiplier"], config["block_multiple_of"]
    return width if factor is None else -(-int(factor * width) // multiple) * multiple


def _read_experts(config: dict[str, Any], name: str) -> Architecture:
    config_fields.check_values(config, {"norm_topk_prob": True}, name, _MOE)
    return _read_layers(
        config,
        name,
        _MOE,
        num_experts=config["num_experts"],
        moe_router_topk=config["num_experts_per_tok"],
        moe_ffn_hidden_size=config["moe_intermediate_size"],
        moe_first_dense_layers=config["num_dense_layers"],
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=config["use_expert_bias"],
        moe_router_topk_scaling_factor=float(config["routed_scaling_factor"]),
    )


_DEFAULTS = {
    "tie_word_embeddings": True,
    "norm_eps": 1e-5,
    "conv_L_cache": 3,
    "max_position_embeddings": 128000,
    "num_key_value_heads": 8,
}
_ALIASES = {"tie_embedding": "tie_word_embeddings"}
LFM2 = ModelType(
    _DENSE,
    "Lfm2ForCausalLM",
    _write,
    _read,
    aliases=_ALIASES | {"block_ff_dim": "intermediate_size"},
    defaults=_DEFAULTS | {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256},
    layer_types=_layer_types,
)
LFM2_MOE = ModelType(
    _MOE,
    "Lfm2MoeForCausalLM",
    _write_experts,
    _read_experts,
    aliases=_ALIASES,
    defaults=_DEFAULTS
    | {"num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 1792}
    | {"use_expert_bias": True, "routed_scaling_factor": 1.0, "norm_topk_prob": True},
    layer_types=_layer_types,
)
