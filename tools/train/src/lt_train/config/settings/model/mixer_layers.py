"""Layers with a mixer that Megatron has no option for: a preset or a config.json says which layers they are."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lt_shared.models.architecture import Architecture

_PARTS = ("short_convolution", "mamba")


def changed_fields(base: Architecture, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a changed number of layers changes: the lists of layers keep their beginnings."""
    count = changes.get("num_layers", base.num_layers)
    parts = {name: getattr(base, name) for name in _PARTS if getattr(base, name) is not None}
    fields = {name: dataclasses.replace(part, layers=_layers(base, part.layers, count)) for name, part in parts.items()}
    return fields | {"mlp_layers": tuple(layer for layer in base.mlp_layers if layer < count)}


def _layers(base: Architecture, layers: Sequence[int], count: int) -> tuple[int, ...]:
    # Mamba-2 beside attention is in every layer.
    return tuple(range(count)) if base.side_by_side else tuple(layer for layer in layers if layer < count)
