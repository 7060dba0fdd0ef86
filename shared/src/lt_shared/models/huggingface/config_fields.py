"""The config.json fields that all Llama-style models share, and checks of fields that change the model."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import rope_parameters
from lt_shared.models.huggingface.rope_parameters import FULL, SLIDING

# Settings of unsupported features, with the value that turns them off.
ABSENT = {"attention_bias": False, "mlp_bias": False, "use_sliding_window": False}


def layer_types(architecture: Architecture) -> list[str]:
    """Return config.json's list of layer types, for models with windows on some layers."""
    return [FULL if architecture.window(layer) is None else SLIDING for layer in range(architecture.num_layers)]


def types_of_layers(architecture: Architecture, layers: Collection[int], kind: str) -> list[str]:
    """Return config.json's list of layer types for a model whose `layers` are of a `kind`, and the others attention."""
    return [kind if layer in layers else FULL for layer in range(architecture.num_layers)]


def layers_of_type(types: Sequence[str], count: int, kind: str, name: str) -> tuple[int, ...]:
    """Return the layers of a `kind` in `layer_types`, counted from 0.

    Raises BadConfig for a list that has not `count` layers, and for a layer that is neither of the kind nor attention.
    """
    if len(types) != count:
        raise BadConfig(f"{name}: layer_types has {len(types)} layers, and num_hidden_layers is {count}")
    for layer, value in enumerate(types):
        if value not in (kind, FULL):
            raise BadConfig(f"{name}: layer {layer} in layer_types is {value!r:.40}, known here are {kind} and {FULL}")
    return tuple(layer for layer, value in enumerate(types) if value == kind)


@dataclasses.dataclass(frozen=True)
class ModelType:
    """One `model_type` of transformers.

    `write` returns the config.json fields that only this type decides, `read` the architecture of a config.json; its name is for
    messages. `aliases` are other names of settings that transformers accepts; if a file has both, the last one counts.
    `language_model` returns the settings of the language model in a model with more parts. `defaults` has transformers' values
    for settings that a file may leave out; any other missing setting is an error. `layer_types` is the list of layer kinds,
    which a file may have beside equivalent settings.
    """

    name: str
    class_name: str
    write: Callable[[Architecture], dict[str, Any]]
    read: Callable[[dict[str, Any], str], Architecture]
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    language_model: Callable[[dict[str, Any]], dict[str, Any]] = dict
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    layer_types: Callable[[Architecture], list[str]] = layer_types


def check_values(config: Mapping[str, Any], expected: Mapping[str, Any], name: str, kind: str) -> None:
    """Raises BadConfig for a setting that is there, and has another value than the family has."""
    for field, value in expected.items():
        if config.get(field) not in (None, value):
            raise BadConfig(f"{name}: {field} is {config[field]!r}, the {kind} family here has {value!r}")


def either(config: Mapping[str, Any], name: str, *fields: str) -> Any:
    """Return a setting that has different names in transformers' versions.

    Raises BadConfig if two names disagree, and KeyError for the first name if all are missing."""
    values = [config[field] for field in fields if config.get(field) is not None]
    if not values:
        raise KeyError(fields[0])
    if any(value != values[0] for value in values):
        raise BadConfig(f"{name}: {' and '.join(fields)} are one setting, and contradict each other", "remove the wrong one")
    return values[0]


def window_frequency(config: Mapping[str, Any], pattern: int) -> int | None:
    """Return Megatron's `window_attn_skip_freq` for `layer_types`: every n-th layer has no window; None if all layers have one.

    `pattern` is the family's value, used if the file does not state one or has too few layers to show it.
    """
    layer_types = list(config.get("layer_types") or [])
    usual = [SLIDING if (layer + 1) % pattern else FULL for layer in range(len(layer_types))]
    if layer_types == usual:
        return pattern
    return layer_types.index(FULL) + 1 if FULL in layer_types else None


def written(architecture: Architecture) -> dict[str, Any]:
    """The fields of a model in the Llama style."""
    return {
        "hidden_size": architecture.hidden_size,
        "intermediate_size": architecture.ffn_hidden_size,
        "num_hidden_layers": architecture.num_layers,
        "num_attention_heads": architecture.num_attention_heads,
        "num_key_value_heads": architecture.num_query_groups,
        "head_dim": architecture.kv_channels,
        "max_position_embeddings": architecture.max_position_embeddings,
        "rms_norm_eps": architecture.norm_epsilon,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        **rope_parameters.written(architecture.rotary_base, architecture.rope_scaling),
    }


def written_partly_rotated(architecture: Architecture) -> dict[str, Any]:
    """Return the fields of a model that rotates a part of each head, with that part where transformers looks for it."""
    fields = written(architecture)
    fields["rope_parameters"]["partial_rotary_factor"] = architecture.rotary_percent
    return fields | {"partial_rotary_factor": architecture.rotary_percent}


def padding(architecture: Architecture, default: int) -> dict[str, int | None]:
    """Return the `pad_token_id` of a type whose default in transformers is `default`: None for a smaller vocabulary, which
    transformers would refuse to build."""
    return {"pad_token_id": default if default < architecture.vocab_size else None}


def read(
    config: dict[str, Any],
    name: str,
    kind: str,
    *,
    absent: Mapping[str, Any] = ABSENT,
    activation: str = "silu",
    activation_here: str = "silu",
    rotary_base: float = 10000.0,
    rotary_percent: float | None = None,
    **family: Any,
) -> Architecture:
    """Return the Llama-style architecture of `config`, with `family` for the fields that a family adds or reads differently.

    `absent` are settings that must have these values. `activation` is the family's activation by transformers' name,
    `activation_here` the same by the architecture's name. `rotary_base` is transformers' default, or the value read if `family`
    has a `rope_scaling`. `rotary_percent` is the default for the rotated part of a head; None if heads are rotated whole. Raises
    BadConfig, and KeyError for a missing size.
    """
    percent = rope_parameters.rotary_percent(config, name, rotary_percent or 1.0)
    if percent != 1 and rotary_percent is None:
        raise BadConfig(f"{name}: partial_rotary_factor is {percent!r}, the {kind} family here has 1.0")
    base, scaling = rotary_base, None
    if "rope_scaling" not in family:
        base, scaling = rope_parameters.read(config, name, rotary_base)
    check_values(config, absent, name, kind)
    hidden_activation = config.get("hidden_act") or config.get("hidden_activation") or activation
    if hidden_activation != activation:
        raise BadConfig(f"{name}: hidden_act is {hidden_activation!r}, the {kind} family here has {activation}")
    groups = config.get("num_key_value_heads")
    fields = {
        "num_layers": config["num_hidden_layers"],
        "hidden_size": config["hidden_size"],
        "ffn_hidden_size": config["intermediate_size"],
        "num_attention_heads": config["num_attention_heads"],
        "num_query_groups": config["num_attention_heads"] if groups is None else groups,
        "vocab_size": config["vocab_size"],
        "max_position_embeddings": config["max_position_embeddings"],
        "kv_channels": config.get("head_dim") or 0,
        "norm_epsilon": config["rms_norm_eps"],
        "rotary_base": base,
        "rope_scaling": scaling,
        "rotary_percent": percent,
        "tie_embeddings": config.get("tie_word_embeddings", False),
        "init_std": config.get("initializer_range", 0.02),
        "activation": activation_here,
    }
    return Architecture(name=name, family="llama", **(fields | family))
