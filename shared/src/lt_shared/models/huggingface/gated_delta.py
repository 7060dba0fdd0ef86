"""The settings of gated delta layers: their sizes, and which layers they are."""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture, GatedDelta
from lt_shared.models.architecture.gated_delta import SIZES
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.rope_parameters import FULL

LINEAR = "linear_attention"
INTERVAL = "full_attention_interval"
# transformers' sizes, and every how many layers one has attention.
DEFAULTS: dict[str, Any] = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    INTERVAL: 4,
}


def layer_types(architecture: Architecture) -> list[str]:
    """Return config.json's list of layer types."""
    layers = architecture.gated_delta.layers if architecture.gated_delta else ()
    return config_fields.types_of_layers(architecture, layers, LINEAR)


def written(architecture: Architecture) -> dict[str, Any]:
    """Raises BadConfig for a model without such layers, which the types here cannot be."""
    delta = architecture.gated_delta
    if delta is None:
        raise BadConfig(f"{architecture.name}: no layer has gated delta")
    return {name: getattr(delta, name) for name in SIZES} | {"layer_types": layer_types(architecture)}


def read(config: dict[str, Any], name: str, **family: Any) -> GatedDelta:
    """Read the layers from `layer_types`, or from the interval of attention without it.

    `family` are other fields. Raises BadConfig for a list of another length, and for another type of layer; KeyError for a
    missing size.
    """
    count, types = config["num_hidden_layers"], config.get("layer_types")
    if types is None:
        types = [LINEAR if (layer + 1) % config[INTERVAL] else FULL for layer in range(count)]
    layers = config_fields.layers_of_type(types, count, LINEAR, name)
    if not layers or len(layers) == count:
        raise BadConfig(f"{name}: all layers are {types[0] if types else 'missing'}, and models here have {LINEAR} and {FULL}")
    return GatedDelta(layers, **{size: config[size] for size in SIZES}, **family)
