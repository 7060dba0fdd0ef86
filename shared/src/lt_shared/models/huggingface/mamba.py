"""The settings of Mamba-2 layers in Granite 4, Bamba and Falcon-H1: their sizes, under names that begin with `mamba_`."""

import math
from collections.abc import Sequence
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture, Mamba
from lt_shared.models.architecture.sizes import MAMBA
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.rope_parameters import FULL

LINEAR = "linear_attention"
_SIZES = {
    "mamba_n_heads": "mamba_num_heads",
    "mamba_d_state": "mamba_state_dim",
    "mamba_n_groups": "mamba_num_groups",
    "mamba_d_conv": "taps",
    "mamba_conv_bias": "convolution_bias",
}
# As transformers 5 writes it.
_INFINITY = {"__float__": "Infinity"}
DEFAULTS: dict[str, Any] = {
    "mamba_n_heads": 128,
    "mamba_d_state": 256,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_conv_bias": True,
    "mamba_d_head": "auto",
    "mamba_expand": 2,
}


def layer_types(architecture: Architecture) -> list[str]:
    """Return config.json's list of layer types."""
    return [LINEAR if architecture.mixer(layer) == MAMBA else FULL for layer in range(architecture.num_layers)]


def written(architecture: Architecture) -> dict[str, Any]:
    """Raises BadConfig for a width that is no multiple of the residual stream's, which transformers refuses."""
    mamba = architecture.mamba
    if mamba is None or architecture.mlp_layers or mamba.inner_size % architecture.hidden_size:
        raise BadConfig(f"{architecture.name}: no Mamba-2 beside an MLP, with a multiple of the hidden size as its width")
    if not mamba.has_norm or architecture.side_by_side:
        raise BadConfig(f"{architecture.name}: Mamba-2 beside attention, or without a norm")
    return sizes_written(mamba) | {"mamba_expand": mamba.inner_size // architecture.hidden_size}


def sizes_written(mamba: Mamba) -> dict[str, Any]:
    """The settings of a mixer without its width."""
    limit = {"time_step_limit": [mamba.least_step, _INFINITY]} if mamba.least_step else {}
    return {field: getattr(mamba, size) for field, size in _SIZES.items()} | {
        "mamba_d_head": mamba.mamba_head_dim,
        "mamba_proj_bias": False,
        **limit,
    }


def read(config: dict[str, Any], name: str, kind: str, types: Sequence[str], width: int | None = None) -> Mamba:
    """Read the layers that `types` lists. `width` replaces the width that `mamba_expand` states.

    Raises BadConfig for another type of layer, or for another number of layers.
    """
    config_fields.check_values(config, {"mamba_proj_bias": False}, name, kind)
    if len(types) != config["num_hidden_layers"]:
        raise BadConfig(f"{name}: {len(types)} types of layers, and num_hidden_layers is {config['num_hidden_layers']}")
    for layer, value in enumerate(types):
        if value not in (LINEAR, FULL):
            raise BadConfig(f"{name}: layer {layer} is {value!r:.40}, known here are {LINEAR} and {FULL}")
    heads, head = config["mamba_n_heads"], config["mamba_d_head"]
    source = "mamba_expand" if width is None else "mamba_d_ssm"
    width = config["mamba_expand"] * config["hidden_size"] if width is None else width
    head = width // heads if head == "auto" else head
    if heads * head != width:
        raise BadConfig(f"{name}: {heads} Mamba heads of {head} channels, and {source} makes a width of {width}")
    layers = tuple(layer for layer, value in enumerate(types) if value == LINEAR)
    sizes = {size: config[field] for field, size in _SIZES.items()}
    has_norm = bool(config.get("mamba_rms_norm", True))
    least_step = _least_step(config.get("time_step_limit"), name)
    return Mamba(layers, mamba_head_dim=head, has_norm=has_norm, least_step=least_step, **sizes)


def _least_step(limit: Any, name: str) -> float:
    """The least time step. Raises BadConfig for a largest one, which no published model has."""
    if limit is None:
        return 0.0
    least, largest = limit
    # Python's json writes infinity as a word.
    if largest not in (math.inf, None, _INFINITY):
        raise BadConfig(f"{name}: time_step_limit is {limit!r:.80}, and only time steps without a largest one are known here")
    return float(least)
