"""An `Architecture` as Hugging Face `config.json`, and back.

transformers has a model type per family. Here a family is the Llama style with one feature more, which decides the model type;
a model without such a feature is a Llama (as is Mistral 7B from version 0.2 on, whatever its config.json says). The GPT style
is GPT-2, with other names for all settings. transformers 5 keeps the rotary settings in `rope_parameters`; older files have
`rope_theta` and `rope_scaling`. Both are read; both are written, so that transformers 4.43 and later load the result with the
same frequencies. Where both are there and differ, versions of transformers would compute different models: that is refused.
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
_GPT2 = ("gpt2", "GPT2LMHeadModel")
MODEL_TYPES = tuple(dict.fromkeys(model_type for model_type, _ in (*_TYPES.values(), _GPT2)))
# The tanh approximation of GELU, which Megatron computes, under both of its names.
_GELU = ("gelu_new", "gelu_pytorch_tanh")
# transformers' default where it differs between model types.
_ROTARY_BASES = {"mixtral": 1000000.0}
_QWEN3_HEAD = 128
# Settings of unsupported features, with the value that turns them off.
_ABSENT_ANYWHERE = ("per_layer_config", "pruned_heads", "transformers_weights")
# Other names of settings, which transformers takes too: with both, the last one in the file decides.
_ALIASES = {
    "gpt2": {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    "mixtral": {"num_experts": "num_local_experts"},
}
_ABSENT_HERE = {"attention_bias": False, "mlp_bias": False, "use_sliding_window": False, "partial_rotary_factor": 1.0}
_ABSENT_IN_GPT2 = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}


def model_type(architecture: Architecture) -> str | None:
    """The `model_type` of transformers that computes this architecture; None when it has none."""
    found = _type(architecture)
    return found[0] if found else None


def _type(architecture: Architecture) -> tuple[str, str] | None:
    features = tuple(feature for feature in _FEATURES if getattr(architecture, feature))
    if architecture.family == "gpt":
        square = architecture.query_size == architecture.kv_size == architecture.hidden_size
        return _GPT2 if square and not features else None
    return _TYPES.get(features) if architecture.rotary_percent == 1 else None


def to_config(architecture: Architecture, dtype: str) -> dict[str, Any]:
    """The content of config.json for a model whose tensors are stored as `dtype` ("bfloat16", ...).

    Raises BadConfig when transformers has no model type for it.
    """
    found = _type(architecture)
    if found is None:
        kinds = ", ".join(MODEL_TYPES)
        raise BadConfig(f"{architecture.name}: has no Hugging Face form here, which are {kinds}")
    common = {
        "architectures": [found[1]],
        "model_type": found[0],
        "vocab_size": architecture.vocab_size,
        "tie_word_embeddings": architecture.tie_embeddings,
        "initializer_range": architecture.init_std,
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    return common | (_gpt2_fields(architecture) if found == _GPT2 else _llama_fields(found[0], architecture))


def _gpt2_fields(architecture: Architecture) -> dict[str, Any]:
    return {
        "n_embd": architecture.hidden_size,
        "n_inner": architecture.ffn_hidden_size,
        "n_layer": architecture.num_layers,
        "n_head": architecture.num_attention_heads,
        "n_positions": architecture.max_position_embeddings,
        "layer_norm_epsilon": architecture.norm_epsilon,
        "activation_function": _GELU[0],
    }


def _llama_fields(kind: str, architecture: Architecture) -> dict[str, Any]:
    scaling = architecture.rope_scaling
    rope = {"rope_type": "llama3", **dataclasses.asdict(scaling)} if scaling else {"rope_type": "default"}
    return {
        "hidden_size": architecture.hidden_size,
        "intermediate_size": architecture.ffn_hidden_size,
        "num_hidden_layers": architecture.num_layers,
        "num_attention_heads": architecture.num_attention_heads,
        "num_key_value_heads": architecture.num_query_groups,
        "head_dim": architecture.kv_channels,
        "max_position_embeddings": architecture.max_position_embeddings,
        "rms_norm_eps": architecture.norm_epsilon,
        "rope_theta": architecture.rotary_base,
        "rope_scaling": rope if scaling else None,
        "rope_parameters": {**rope, "rope_theta": architecture.rotary_base},
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        **_type_fields(kind, architecture),
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
    if config.get("quantization_config"):
        raise BadConfig(
            f"{name}: has a quantization_config, and quantized weights are not converted",
            "use the model as it was before, or store what transformers' model.dequantize() makes of it",
        )
    try:
        _check_one_reading(config, name, kind)
        return _from_gpt2(config, name) if kind == "gpt2" else _from_llama(config, name, kind)
    except KeyError as error:
        raise BadConfig(f"{name}: config.json has no {error}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise BadConfig(f"{name}: config.json is malformed: {error}") from None


def _check_one_reading(config: dict[str, Any], name: str, kind: str) -> None:
    """Raises BadConfig for what transformers takes from a configuration beside, or instead of, what is read here."""
    for field in _ABSENT_ANYWHERE:
        if config.get(field):
            raise BadConfig(f"{name}: has {field}, which is not supported")
    for alias, field in _ALIASES.get(kind, {}).items():
        if alias in config and config[alias] != config.get(field):
            raise BadConfig(f"{name}: {alias} and {field} are one setting, and contradict each other", "remove the wrong one")
    layers = config.get("layer_types")
    if layers and set(layers) != {"sliding_attention" if _window(config, kind) else "full_attention"}:
        raise BadConfig(f"{name}: layer_types has {sorted(set(layers))}, and only models with layers of one kind are known here")


def _check_absent(config: dict[str, Any], absent: dict[str, Any], name: str, kind: str) -> None:
    for field, value in absent.items():
        if config.get(field) not in (None, value):
            raise BadConfig(f"{name}: {field} is {config[field]!r}, the {kind} family here has {value!r}")


def _from_gpt2(config: dict[str, Any], name: str) -> Architecture:
    _check_absent(config, _ABSENT_IN_GPT2, name, "gpt2")
    activation = config.get("activation_function", _GELU[0])
    if activation not in _GELU:
        raise BadConfig(f"{name}: activation_function is {activation!r}, the gpt2 family here has {' or '.join(_GELU)}")
    return Architecture(
        name=name,
        family="gpt",
        num_layers=config["n_layer"],
        hidden_size=config["n_embd"],
        ffn_hidden_size=config.get("n_inner") or 4 * config["n_embd"],
        num_attention_heads=config["n_head"],
        num_query_groups=config["n_head"],
        vocab_size=config["vocab_size"],
        max_position_embeddings=config["n_positions"],
        norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
        tie_embeddings=config.get("tie_word_embeddings", True),
        init_std=config.get("initializer_range", 0.02),
    )


def _from_llama(config: dict[str, Any], name: str, kind: str) -> Architecture:
    rotary_base, rope_scaling = _rope(config, name, kind)
    _check_absent(config, _ABSENT_HERE, name, kind)
    if config.get("hidden_act", "silu") != "silu":
        raise BadConfig(f"{name}: hidden_act is {config['hidden_act']!r}, the {kind} family here has silu")
    groups = config.get("num_key_value_heads")
    return Architecture(
        name=name,
        family="llama",
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=config["num_attention_heads"],
        num_query_groups=config["num_attention_heads"] if groups is None else groups,
        vocab_size=config["vocab_size"],
        max_position_embeddings=config["max_position_embeddings"],
        kv_channels=config.get("head_dim") or (_QWEN3_HEAD if kind == "qwen3" else 0),
        norm_epsilon=config["rms_norm_eps"],
        rotary_base=rotary_base,
        rope_scaling=rope_scaling,
        tie_embeddings=config.get("tie_word_embeddings", False),
        init_std=config.get("initializer_range", 0.02),
        add_qkv_bias=kind == "qwen2",
        qk_layernorm=kind == "qwen3",
        sliding_window=_window(config, kind),
        num_experts=config["num_local_experts"] if kind == "mixtral" else None,
        moe_router_topk=config["num_experts_per_tok"] if kind == "mixtral" else 2,
        moe_aux_loss_coeff=config.get("router_aux_loss_coef", 0.001) if kind == "mixtral" else 0.0,
    )


def _window(config: dict[str, Any], kind: str) -> int | None:
    """The number of tokens that a token attends to; None for all before it."""
    return config["sliding_window"] if kind in ("mistral", "mixtral") else None


def _rope(config: dict[str, Any], name: str, kind: str) -> tuple[float, RopeScaling | None]:
    """The rotary base and its scaling. Raises BadConfig where the older and the newer field say different things."""
    found: list[tuple[float, RopeScaling | None]] = []
    for field in ("rope_scaling", "rope_parameters"):
        rope = dict(config.get(field) or {})
        _check_absent(rope, _ABSENT_HERE, name, kind)
        given = (rope.get("rope_theta"), config.get("rope_theta"), _ROTARY_BASES.get(kind, 10000.0))
        base = next(value for value in given if value is not None)
        if rope or not found:
            found.append((float(base) if type(base) is int else base, _scaling(rope, name)))
    if not config.get("rope_scaling"):
        return found[-1]
    if found[0] != found[-1]:
        raise BadConfig(
            f"{name}: rope_scaling and rope_parameters contradict each other",
            "remove the wrong one; transformers 5 computes with rope_scaling",
        )
    return found[0]


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
