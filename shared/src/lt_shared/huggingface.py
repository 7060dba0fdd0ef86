"""An `Architecture` as Hugging Face `config.json`, and back.

transformers has a model type per family; here a family is the Llama style with one feature, so the feature decides the type, and
a model with none of them is a Llama (Mistral 7B from version 0.2 on is one, whatever its file says). transformers 5 keeps the
rotary settings in `rope_parameters`; older files have `rope_theta` and `rope_scaling`. Both are read; both are written, so that
transformers 4.43 and later load the result with the same frequencies.
"""

import dataclasses
from typing import Any

from lt_shared.architecture import Architecture, RopeScaling
from lt_shared.console import BadConfig

_SCALING_FIELDS = tuple(field.name for field in dataclasses.fields(RopeScaling))
_FEATURES = ("add_qkv_bias", "qk_layernorm", "sliding_window", "num_experts")
_TYPES = {
    (): ("llama", "LlamaForCausalLM"),
    ("sliding_window",): ("mistral", "MistralForCausalLM"),
    ("add_qkv_bias",): ("qwen2", "Qwen2ForCausalLM"),
    ("qk_layernorm",): ("qwen3", "Qwen3ForCausalLM"),
    ("num_experts",): ("mixtral", "MixtralForCausalLM"),
    ("sliding_window", "num_experts"): ("mixtral", "MixtralForCausalLM"),
}
MODEL_TYPES = tuple(dict.fromkeys(model_type for model_type, _ in _TYPES.values()))


def model_type(architecture: Architecture) -> str | None:
    """The `model_type` of transformers that computes this architecture; None when it has none."""
    found = _type(architecture)
    return found[0] if found else None


def _type(architecture: Architecture) -> tuple[str, str] | None:
    if architecture.family != "llama" or architecture.rotary_percent != 1:
        return None
    return _TYPES.get(tuple(feature for feature in _FEATURES if getattr(architecture, feature)))


def to_config(architecture: Architecture, dtype: str) -> dict[str, Any]:
    """The content of config.json for a model whose tensors are stored as `dtype` ("bfloat16", ...).

    Raises BadConfig when transformers has no model type for it.
    """
    found = _type(architecture)
    if found is None:
        kinds = ", ".join(MODEL_TYPES)
        raise BadConfig(f"{architecture.name}: has no Hugging Face form here, which are {kinds}")
    scaling = architecture.rope_scaling
    rope = {"rope_type": "llama3", **dataclasses.asdict(scaling)} if scaling else {"rope_type": "default"}
    return {
        "architectures": [found[1]],
        "model_type": found[0],
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
        "attention_dropout": 0.0,
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,
        **_type_fields(found[0], architecture),
    }


def _type_fields(kind: str, architecture: Architecture) -> dict[str, Any]:
    """What only this model type has."""
    experts = {
        "num_local_experts": architecture.num_experts,
        "num_experts_per_tok": architecture.moe_router_topk,
        "router_aux_loss_coef": architecture.moe_aux_loss_coeff,
    }
    fields: dict[str, dict[str, Any]] = {
        "llama": {"attention_bias": False, "mlp_bias": False},
        "mistral": {"sliding_window": architecture.sliding_window},
        "qwen2": {"use_sliding_window": False},
        "qwen3": {"use_sliding_window": False, "attention_bias": False},
        "mixtral": {"sliding_window": architecture.sliding_window, **experts},
    }
    return fields[kind]


def from_config(config: dict[str, Any], name: str) -> Architecture:
    """Read a config.json. Raises BadConfig for an unknown model type or a setting that has no place here."""
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise BadConfig(f"{name}: model type {kind!r}, known here are {', '.join(MODEL_TYPES)}")
    for field in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if config.get(field):
            raise BadConfig(f"{name}: {field} is set, which the {kind} family here does not have")
    if config.get("hidden_act", "silu") != "silu":
        raise BadConfig(f"{name}: hidden_act is {config['hidden_act']!r}, the {kind} family here has silu")
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
            add_qkv_bias=kind == "qwen2",
            qk_layernorm=kind == "qwen3",
            sliding_window=config["sliding_window"] if kind in ("mistral", "mixtral") else None,
            num_experts=config["num_local_experts"] if kind == "mixtral" else None,
            moe_router_topk=config["num_experts_per_tok"] if kind == "mixtral" else 2,
            moe_aux_loss_coeff=config.get("router_aux_loss_coef", 0.001) if kind == "mixtral" else 0.0,
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
