"""Placeholders in the patterns of tensor names, and the numbers that they stand for in a model.

`{layer}` stands for every layer, other placeholders for some layers. HybridModel numbers mixers and MLPs separately
(`lt_shared.models.hybrid_pattern`), so its patterns have other placeholders than canonical names.
"""

import functools
from collections.abc import Callable, Iterable, Iterator

from lt_shared.models import hybrid_pattern
from lt_shared.models.architecture import Architecture
from lt_shared.models.architecture.mixers import MIXERS

LAYER, EXPERT = "{layer}", "{expert}"
# Layers without and with experts, in a model that has both (`layer_with` names those with a mixer); a multi-token prediction
# layer by its number behind the last layer, as in Hugging Face's names, and by its own, as in Megatron's.
DENSE_LAYER, EXPERT_LAYER, MTP_LAYER, MTP = "{dense_layer}", "{expert_layer}", "{mtp_layer}", "{mtp}"


def layer_with(mixer: str) -> str:
    """The placeholder for layers with one kind of mixer (`lt_shared.models.architecture.mixers`), if a model has several."""
    return f"{{layer_with_{mixer}}}"


# The placeholders of layers in Megatron's decoder.
OF_LAYERS = (LAYER, DENSE_LAYER, EXPERT_LAYER, *map(layer_with, MIXERS))


def mixer_of(placeholder: str) -> str:
    """The placeholder for the same layers' mixers in HybridModel."""
    return placeholder.replace("}", "_mixer}")


def mlp_of(placeholder: str) -> str:
    """The placeholder for the same layers' MLPs in HybridModel."""
    return placeholder.replace("}", "_mlp}")


_PLACEHOLDERS = (*OF_LAYERS, *map(mixer_of, OF_LAYERS), *map(mlp_of, OF_LAYERS))


def expanded(patterns: Iterable[str], architecture: Architecture) -> Iterator[tuple[str, str, Callable[[str], str]]]:
    """(name, pattern, function that fills in the pattern's numbers); the patterns with layers in them layer by layer."""
    patterns = list(patterns)
    layered = [pattern for pattern in patterns if is_layered(pattern)]
    first = patterns.index(layered[0]) if layered else len(patterns)
    yield from ((pattern, pattern, str) for pattern in patterns[:first])
    for layer in range(architecture.num_layers + architecture.mtp_num_layers):
        numbers = _numbers(layer, architecture)

        # A layer of DeepSeek-V3 has 256 experts, whose names differ in one number.
        @functools.cache
        def fill_layer(text: str, numbers: dict[str, int] = numbers) -> str:
            for placeholder, number in numbers.items():
                text = text.replace(placeholder, str(number))
            return text

        for pattern in layered:
            if not any(placeholder in pattern for placeholder in numbers):
                continue
            for expert in range(architecture.num_experts or 0) if EXPERT in pattern else (None,):

                def fill(text: str, fill_layer: Callable[[str], str] = fill_layer, expert: int | None = expert) -> str:
                    text = fill_layer(text)
                    return text if expert is None else text.replace(EXPERT, str(expert))

                yield fill(pattern), pattern, fill
    yield from ((pattern, pattern, str) for pattern in patterns[first:] if not is_layered(pattern))


def extra_states(module: str, layers: int, experts: int) -> list[str]:
    """The `_extra_state` keys of a module whose layers are stacked: without placeholders, with a shard for each layer."""
    name = module
    for placeholder in (*OF_LAYERS, EXPERT):
        name = name.replace(f".{placeholder}", "")
    key = f"{name}._extra_state/shard_"
    if EXPERT in module:
        return [f"{key}{layer}.{expert}_{layers}.{experts}" for layer in range(layers) for expert in range(experts)]
    return [f"{key}{layer}_{layers}" for layer in range(layers)] if is_layered(module) else [f"{key}0_1"]


def is_layered(pattern: str) -> bool:
    return any(placeholder in pattern for placeholder in (*_PLACEHOLDERS, MTP_LAYER, MTP))


def stands_for(pattern: str, layer: int, architecture: Architecture) -> bool:
    """Whether the pattern has a placeholder for this layer."""
    return any(placeholder in pattern for placeholder in _numbers(layer, architecture))


def _numbers(layer: int, architecture: Architecture) -> dict[str, int]:
    """The placeholders that stand for this layer, with the numbers that they become."""
    if layer >= architecture.num_layers:
        return {MTP_LAYER: layer, MTP: layer - architecture.num_layers}
    mlp = EXPERT_LAYER if architecture.has_experts(layer) else DENSE_LAYER
    mlps = (mlp,) if architecture.has_mlp(layer) else ()
    layers = (LAYER, *mlps, layer_with(architecture.mixer(layer)))
    mixer_position, mlp_position = hybrid_pattern.positions(layer, bool(architecture.mlp_layers))
    return {
        **dict.fromkeys(layers, layer),
        **dict.fromkeys(map(mixer_of, layers), mixer_position),
        **dict.fromkeys(map(mlp_of, layers), mlp_position),
    }
