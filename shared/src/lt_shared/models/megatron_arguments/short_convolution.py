"""Short convolutions as arguments that Megatron does not read, and back."""

from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture, ShortConvolution

LAYERS, TAPS = "lt_short_convolution_layers", "lt_short_convolution_taps"


def to_arguments(architecture: Architecture) -> dict[str, Any]:
    convolution = architecture.short_convolution
    return {} if convolution is None else {LAYERS: list(convolution.layers), TAPS: convolution.taps}


def from_arguments(arguments: Mapping[str, Any], name: str) -> ShortConvolution | None:
    """Return the layers, None without any. Raises BadConfig for one argument without the other."""
    layers, taps = arguments.get(LAYERS), arguments.get(TAPS)
    if layers is None and taps is None:
        return None
    if not isinstance(layers, list | tuple) or taps is None:
        raise BadConfig(f"{name}: {LAYERS} is {layers!r:.80} and {TAPS} {taps!r:.80}: short convolutions need both")
    return ShortConvolution(tuple(layers), taps)


def absent_in_megatron(architecture: Architecture) -> list[str]:
    """List what megatron-core's layers lack."""
    return [] if architecture.short_convolution is None else ["its short convolutions, a kind of layer that it lacks"]
