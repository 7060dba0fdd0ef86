"""An `Architecture` as Hugging Face `config.json`, and back.

transformers 5 keeps the rotary settings in `rope_parameters`; older files have `rope_theta` and `rope_scaling`. Both are read;
both are written, so that transformers 4.43 and later load the result with the same frequencies.
"""

import dataclasses
from typing import Any

from lt_shared.architecture import Architecture, RopeScaling
from lt_shared.console import BadConfig

_SCALING_FIELDS = tuple(field.name for field in dataclasses.fields(RopeScaling))


def to_config(architecture: Architecture, dtype: str) -> dict[str, Any]:
    """The content of config.json for a Llama-family model whose tensors are stored as `dtype` ("bfloat16", ...)."""
    if architecture.family != "llama":
        raise BadConfig(f"{architecture.name}: only the Llama family has a Hugging Face form here, this is {architecture.family}")
    scaling = architecture.rope_scaling
    rope = {"rope_type": "llama3", **dataclasses.asdict(scaling)} if scaling else {"rope_type": "default"}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": architecture.hidden_size,
        "intermediate_size": architecture.ffn_hidden_size,
        "num_hidden_layers": architecture.num_layers,
        "num_attention_heads": architecture.num_attention_heads,
        "num_key_value_heads": architecture.num_query_groups,
        "head_dim": architecture.kv_channels,
        "vocab_size": architecture.vocab_size,
        "max_position_embeddings": architecture.max_position_embeddings,
        "rms_norm_eps": architecture.norm_epsilon,
        "rope_theta": architecture.rotary_base,
        "rope_scaling": rope if scaling else None,
        "rope_parameters": {**rope, "rope_theta": architecture.rotary_base},
        "tie_word_embeddings": architecture.tie_embeddings,
        "initializer_range": architecture.init_std,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def from_config(config: dict[str, Any], name: str) -> Architecture:
    """Read a Llama-family config.json. Raises BadConfig for another family or a setting that has no place here."""
    if config.get("model_type") != "llama":
        raise BadConfig(f"{name}: model type {config.get('model_type')!r}, only llama is known here")
    for field in ("attention_bias", "mlp_bias"):
        if config.get(field):
            raise BadConfig(f"{name}: {field} is set, which the Llama family here does not have")
    if config.get("hidden_act", "silu") != "silu":
        raise BadConfig(f"{name}: hidden_act is {config['hidden_act']!r}, the Llama family here has silu")
    try:
        rope = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
        return Architecture(
            name=name,
            family="llama",
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            ffn_hidden_size=config["intermediate_size"],
            num_attention_heads=config["num_attention_heads"],
            num_query_groups=config.get("num_key_value_heads") or config["num_attention_heads"],
            vocab_size=config["vocab_size"],
            max_position_embeddings=config["max_position_embeddings"],
            kv_channels=config.get("head_dim") or 0,
            norm_epsilon=config["rms_norm_eps"],
            rotary_base=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            rope_scaling=_scaling(rope, name),
            tie_embeddings=bool(config.get("tie_word_embeddings", False)),
            init_std=config.get("initializer_range", 0.02),
        )
    except KeyError as error:
        raise BadConfig(f"{name}: config.json has no {error}") from None
    except (TypeError, ValueError) as error:
        raise BadConfig(f"{name}: config.json is malformed: {error}") from None


def _scaling(rope: dict[str, Any], name: str) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise BadConfig(f"{name}: rope scaling type {kind!r}, only llama3 is known here")
    missing = [field for field in _SCALING_FIELDS if field not in rope]
    if missing:
        raise BadConfig(f"{name}: rope scaling has no {', '.join(missing)}")
    return RopeScaling(**{field: rope[field] for field in _SCALING_FIELDS})
