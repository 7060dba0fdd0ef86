"""Mamba-2 layers as megatron-core's arguments, and back.

megatron-core's sizes have defaults, which every checkpoint stores, and only a layer pattern says which layers there are. Here a
list of our own says it (`hybrid_pattern` turns one into the other).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture, Mamba, SideBySide
from lt_shared.models.architecture.mamba import SIZES
from lt_shared.models.hybrid_pattern import MAMBA_LAYERS, MLP_LAYERS

# Fields that megatron-core has no argument for, with the only values that it computes.
_WITHOUT_ARGUMENT = {"taps": 4, "convolution_bias": True, "least_step": 0.0, "has_norm": True}
_PREFIX = "lt_mamba_"
_EPSILON = 1e-5
_SIDE_BY_SIDE = "lt_side_by_side"


def to_arguments(architecture: Architecture) -> dict[str, Any]:
    mamba = architecture.mamba
    if mamba is None:
        return {}
    sizes = {name: getattr(mamba, name) for name in SIZES}
    other = {_PREFIX + name: getattr(mamba, name) for name, usual in _WITHOUT_ARGUMENT.items() if getattr(mamba, name) != usual}
    mlps = {MLP_LAYERS: list(architecture.mlp_layers)} if architecture.mlp_layers else {}
    factors = {_SIDE_BY_SIDE: dataclasses.asdict(architecture.side_by_side)} if architecture.side_by_side else {}
    return {MAMBA_LAYERS: list(mamba.layers), **mlps, **sizes, **other, **factors}


def from_arguments(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of an architecture, none without Mamba layers. Raises BadConfig and KeyError."""
    layers, mlps = arguments.get(MAMBA_LAYERS), arguments.get(MLP_LAYERS) or ()
    if layers is None and not mlps:
        return {}
    if not isinstance(layers, list | tuple) or not isinstance(mlps, list | tuple):
        raise BadConfig(f"{name}: {MAMBA_LAYERS} is {layers!r:.80} and {MLP_LAYERS} {mlps!r:.80}, not lists of layers")
    sizes = {size: arguments[size] for size in SIZES if size != "mamba_num_heads"}
    # megatron-core's number of heads makes the layer twice as wide as the residual stream.
    heads = arguments.get("mamba_num_heads") or 2 * arguments["hidden_size"] // sizes["mamba_head_dim"]
    other = {field: arguments[_PREFIX + field] for field in _WITHOUT_ARGUMENT if _PREFIX + field in arguments}
    fields = {"mamba": Mamba(tuple(layers), mamba_num_heads=heads, **sizes, **other), "mlp_layers": tuple(mlps)}
    factors = arguments.get(_SIDE_BY_SIDE)
    return fields | ({} if factors is None else {"side_by_side": SideBySide(**factors)})


def absent_in_megatron(architecture: Architecture) -> list[str]:
    """List what megatron-core's Mamba layers lack."""
    mamba = architecture.mamba
    if mamba is None:
        return []
    fields = {f"{name} {getattr(mamba, name)}": getattr(mamba, name) != usual for name, usual in _WITHOUT_ARGUMENT.items()}
    fields[f"an epsilon of {architecture.norm_epsilon} in the norm of the output: it has {_EPSILON}"] = (
        architecture.norm_epsilon != _EPSILON
    )
    absent = [f"of its Mamba layers, {field}" for field, differs in fields.items() if differs]
    return [*absent, "its layers of Mamba-2 and attention side by side"] if architecture.side_by_side else absent
