"""Gemma 2 and Gemma 3 of Megatron-Bridge: the fields of their provider classes as Megatron's arguments.

The classes replace attention, embedding and output layer of megatron-core's model in Python code, in a way that Megatron-LM's
arguments cannot say. So the fields become transformers' settings, and those the arguments in which lt-train and lt-convert store
such a model.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadConfig, BadData
from lt_shared.models import huggingface, megatron_arguments

_CLASS = re.compile(r"Gemma(?P<version>[23])ModelProvider(\d\w*)?")
_ACTIVATION = "fast_gelu"
# Fields that a model of these classes has with one value only.
_REQUIRED: Mapping[str, Any] = {
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "layernorm_zero_centered_gamma": True,
    "position_embedding_type": "rope",
    "is_vision_language": False,
}
# Fields that are read here, and that other classes must not set.
_OWN = (
    *("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "softmax_scale", "interleaved_attn_pattern"),
    *("rope_scaling_factor", "rotary_base", "window_size", "layernorm_zero_centered_gamma", "is_vision_language"),
)


def is_provider(target: str) -> bool:
    """Return whether a class is Megatron-Bridge's provider of Gemma 2 or Gemma 3."""
    return target.startswith("megatron.bridge.") and _CLASS.fullmatch(target.rpartition(".")[2]) is not None


def arguments(fields: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return Megatron's arguments for the fields of a provider. Raises BadData for a field that no other format can express."""
    match = _CLASS.fullmatch(str(fields["_target_"]).rpartition(".")[2])
    assert match is not None
    activation = fields.get("activation_func")
    function = str(activation.get("_target_") if isinstance(activation, dict) else activation).rpartition(".")[2]
    required = {**_REQUIRED, "qk_layernorm": match["version"] == "3"}
    wrong = [name for name, value in required.items() if name in fields and fields[name] != value]
    if function != _ACTIVATION:
        wrong.append("activation_func")
    if wrong:
        raise BadData(f"{path}: {wrong[0]} is {fields[wrong[0]]!r:.80}, which no other format supports with Gemma")
    try:
        config = _common(fields) | (_gemma2(fields) if match["version"] == "2" else _gemma3(fields))
        described = megatron_arguments.to_arguments(huggingface.from_config(config, "model"))
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise BadData(f"{path}: does not describe a model of Gemma: {error!r:.200}") from None
    except BadConfig as error:
        raise BadData(f"{path}: {error}", error.hint) from None
    stored = {name: value for name, value in fields.items() if name not in _OWN and name != "activation_func"}
    return stored | described | {"transformer_impl": fields.get("transformer_impl") or "transformer_engine"}


def _common(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "hidden_size": fields["hidden_size"],
        "intermediate_size": fields["ffn_hidden_size"],
        "num_hidden_layers": fields["num_layers"],
        "num_attention_heads": fields["num_attention_heads"],
        "num_key_value_heads": fields.get("num_query_groups") or fields["num_attention_heads"],
        "head_dim": fields["kv_channels"],
        "rms_norm_eps": float(fields["layernorm_epsilon"]),
        "vocab_size": fields["vocab_size"],
        "max_position_embeddings": fields["seq_length"],
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": fields["share_embeddings_and_output_weights"],
    }


def _gemma2(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "gemma2",
        "query_pre_attn_scalar": fields["query_pre_attn_scalar"],
        "attn_logit_softcapping": fields["attn_logit_softcapping"],
        "final_logit_softcapping": fields["final_logit_softcapping"],
        "rope_theta": fields["rotary_base"],
        # Here the window leaves out the token itself, in Gemma 3's class it does not.
        "sliding_window": fields["window_size"][0] + 1,
    }


def _gemma3(fields: Mapping[str, Any]) -> dict[str, Any]:
    local_base, base = fields["rotary_base"]
    local_layers, global_layers = fields["interleaved_attn_pattern"]
    scalar, factor = fields["softmax_scale"] ** -2, fields.get("rope_scaling_factor") or 1.0
    if global_layers != 1 or not math.isclose(scalar, round(scalar), abs_tol=1e-6):
        raise ValueError(f"a pattern of {local_layers} and {global_layers}, or scores divided by the root of {scalar}")
    return {
        "model_type": "gemma3_text",
        "query_pre_attn_scalar": round(scalar),
        "rope_theta": base,
        "rope_local_base_freq": local_base,
        "sliding_window": fields["window_size"],
        "sliding_window_pattern": local_layers + 1,
        **({"rope_scaling": {"rope_type": "linear", "factor": factor}} if factor != 1 else {}),
    }
