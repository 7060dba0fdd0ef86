"""Checks of the layers that have one kind of mixer, in a model with several kinds."""

from collections.abc import Sequence
from typing import Any

from lt_shared.console import BadConfig


def as_tuple(layers: Sequence[int], kind: str) -> tuple[int, ...]:
    """Return `layers`, which a record has as a list. Raises TypeError for another type, BadConfig for an impossible list."""
    if any(type(layer) is not int for layer in layers):
        raise TypeError(f"{kind} layers are {list(layers)!r:.80}, must be numbers of layers")
    if not layers or sorted(set(layers)) != list(layers) or layers[0] < 0:
        raise BadConfig(f"{kind} layers {list(layers)!r:.80}: not numbers from 0 on in ascending order")
    return tuple(layers)


def check_in_model(layers: Sequence[int], kind: str, num_layers: int) -> None:
    """Raises BadConfig if `layers` are not in a model of `num_layers` layers, or leave no layer for attention."""
    if layers[-1] >= num_layers or len(layers) == num_layers:
        raise BadConfig(
            f"{kind} in the layers {list(layers)!r:.80} of a model of {num_layers} layers",
            "give layers of the model, counted from 0, and leave one for attention",
        )


def check_single_parts(layers: Sequence[int], model: Any) -> None:
    """Raises BadConfig for layers of an MLP alone that are not in `model`, or in a model without Mamba-2."""
    if not layers:
        return
    as_tuple(layers, "MLP")
    if layers[-1] >= model.num_layers:
        raise BadConfig(f"an MLP alone in the layers {list(layers)!r:.80} of a model of {model.num_layers} layers")
    if model.mamba is None:
        raise BadConfig("layers of a mixer or an MLP alone: only models with Mamba-2 layers have them here", "give mamba")
    if model.moe_first_dense_layers:
        raise BadConfig("layers of an MLP alone, of which some have experts: all have them here, or none")
