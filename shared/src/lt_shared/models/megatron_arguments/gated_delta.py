"""Gated delta layers, Kimi Delta Attention among them, as megatron-core's arguments, and back.

`linear_attention_freq` n gives attention to every n-th layer; a list has 1 for each gated delta layer and 0 for attention.
"""

from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture, GatedDelta
from lt_shared.models.architecture.gated_delta import SIZES

VARIANT, FREQUENCY = "experimental_attention_variant", "linear_attention_freq"
# megatron-core's variant, and Kimi Delta Attention, which it does not have.
VARIANTS = GATED_DELTA_NET, KIMI_DELTA_ATTENTION = "gated_delta_net", "kimi_delta_attention"
# Another variant, which `sparse_attention` reads.
SPARSE = "dsa"
# Fields that megatron-core has no argument for.
_WITHOUT_ARGUMENT, _PREFIX = ("doubles_strength", "output_norm_epsilon"), "lt_gated_delta_"


def to_arguments(architecture: Architecture) -> dict[str, Any]:
    delta = architecture.gated_delta
    if delta is None:
        return {}
    sizes = {name: getattr(delta, name) for name in SIZES}
    own = {f"{_PREFIX}{name}": getattr(delta, name) for name in _WITHOUT_ARGUMENT if getattr(delta, name)}
    variant = KIMI_DELTA_ATTENTION if delta.decays_channels else GATED_DELTA_NET
    return {VARIANT: variant, FREQUENCY: _frequency(delta.layers, architecture.num_layers), **sizes, **own}


def _frequency(layers: tuple[int, ...], count: int) -> int | list[int]:
    pattern = [int(layer in layers) for layer in range(count)]
    interval = pattern.index(0) + 1
    return interval if pattern == _of_interval(interval, count) else pattern


def _of_interval(interval: int, count: int) -> list[int]:
    return [int((layer + 1) % interval != 0) for layer in range(count)]


def from_arguments(arguments: Mapping[str, Any], name: str) -> GatedDelta | None:
    """Return the layers, None without any. Raises BadConfig for another variant, and for a list of another length."""
    variant, frequency = arguments.get(VARIANT), arguments.get(FREQUENCY)
    if not frequency and (not variant or variant == SPARSE):
        return None
    if variant not in VARIANTS:
        raise BadConfig(f"{name}: {VARIANT} is {variant!r:.80}, known here are {', '.join((*VARIANTS, SPARSE))}")
    count = arguments["num_layers"]
    if isinstance(frequency, list | tuple):
        pattern = list(frequency)
        if len(pattern) != count or not set(pattern) <= {0, 1}:
            raise BadConfig(f"{name}: {FREQUENCY} is {frequency!r:.80}, not 0 or 1 for each of {count} layers")
    elif type(frequency) is int and frequency > 0:
        pattern = _of_interval(frequency, count)
    else:
        raise BadConfig(f"{name}: {FREQUENCY} is {frequency!r:.80}, neither a number of layers nor a list of 0 and 1")
    layers = tuple(layer for layer, has_delta in enumerate(pattern) if has_delta)
    defaults = GatedDelta(layers)
    own = {field: arguments[_PREFIX + field] for field in _WITHOUT_ARGUMENT if arguments.get(_PREFIX + field)}
    sizes = {size: arguments.get(size) or getattr(defaults, size) for size in SIZES}
    return GatedDelta(layers, **sizes, **own, decays_channels=variant == KIMI_DELTA_ATTENTION)


def absent_in_megatron(architecture: Architecture) -> list[str]:
    """List what megatron-core's gated delta layers lack."""
    delta = architecture.gated_delta
    if delta is None:
        return []
    if delta.decays_channels:
        return ["Kimi Delta Attention, a variant that it does not know"]
    absent = ["gated_norm, the norm of gated delta's output: its out_norm adds 1 to the weight if the other norms do"]
    return absent + [f"{name} {getattr(delta, name)}" for name in _WITHOUT_ARGUMENT if getattr(delta, name)]
