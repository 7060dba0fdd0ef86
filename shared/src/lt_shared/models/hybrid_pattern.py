"""Layer patterns of megatron-core's HybridModel (`--hybrid-layer-pattern`), and the blocks of a decoder that they describe.

A layer of GPTModel has a mixer and an MLP. HybridModel numbers them separately: `*-*-` is two blocks of attention and MLP, the
layers 0 to 3. `|` marks a border of pipeline stages, and `/` begins the pattern of a multi-token prediction layer. With Mamba-2
layers, `M`, every layer of the pattern is a layer of the decoder, unless the arguments list the decoder's Mamba layers.

A new kind of layer is a row of `MIXERS` or `MLPS` here. Its tensors are rows of a family's table in lt-convert.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.architecture.sizes import ATTENTION, GATED_DELTA, LATENT_ATTENTION, MAMBA, NO_MIXER

STAGE_BORDER, PREDICTION = "|", "/"
# The symbols of mixers by kind, and of MLPs without and with experts.
MIXERS = {ATTENTION: "*", LATENT_ATTENTION: "+", MAMBA: "M"}
MLPS = {False: "-", True: "E"}
EXPERTS = MLPS[True]
# megatron-core's layers without a mixer or MLP here, and those that only some callers of `parse` support.
UNSUPPORTED = {
    MIXERS[MAMBA]: "a state-space layer (Mamba-2)",
    "G": "a gated delta layer (GDN)",
    "D": "sparse attention with an indexer (DeepSeek Sparse Attention)",
}
# Our arguments that list the Mamba layers and the layers of an MLP alone in a decoder without a pattern.
MAMBA_LAYERS, MLP_LAYERS = "lt_mamba_layers", "lt_mlp_layers"
# Megatron-LM's arguments for the pattern: today's name, and the name until 2025.
ARGUMENTS = ("hybrid_layer_pattern", "hybrid_override_pattern")
# The function that builds every pattern's layers, as Megatron-LM's `--spec` and the name before it had it.
SPEC = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
SPECS = (SPEC, ("megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"))
# HybridModel's attention without rotation, which GPTModel has as `no_rope_freq` 1.
WITHOUT_POSITIONS = "none"
_WITHOUT_STATE_SPACE = ("is_hybrid_model", "hybrid_attention_ratio", "hybrid_mlp_ratio")


@dataclasses.dataclass(frozen=True)
class Pattern:
    """The blocks of a decoder: each with its kind of mixer and whether it has experts. `stages` counts the blocks per stage.

    `stages` is empty for a pattern without borders. With `has_single_parts`, a block is a mixer or an MLP alone.
    """

    blocks: tuple[tuple[str, bool], ...]
    stages: tuple[int, ...] = ()
    has_single_parts: bool = False

    def layers_with(self, mixer: str) -> list[int]:
        return [layer for layer, (kind, _) in enumerate(self.blocks) if kind == mixer]

    @property
    def expert_frequency(self) -> list[int]:
        """Megatron's `moe_layer_freq`: 1 for a block with experts, 0 for a dense block."""
        return [int(has_experts) for _, has_experts in self.blocks]


def symbols(architecture: Architecture, layer: int) -> str:
    """The symbols of a block of `architecture`, by its index from 0. Raises BadConfig for a mixer that HybridModel lacks."""
    mixer, has_experts = architecture.layer_kind(layer)
    if mixer == GATED_DELTA:
        raise BadConfig(
            f"{architecture.name}: layer {layer} has gated delta, and HybridModel adds 1 to the weight of its output's norm,"
            " which loses bits of a weight in 16 bits",
            "keep the layers of GPTModel (megatron-dist)",
        )
    if mixer not in (*MIXERS, NO_MIXER):
        raise BadConfig(f"{architecture.name}: layer {layer} has the mixer {mixer}, which megatron-core's HybridModel lacks")
    return MIXERS.get(mixer, "") + (MLPS[has_experts] if architecture.has_mlp(layer) else "")


def of_architecture(architecture: Architecture) -> str:
    """The pattern of an architecture. Raises BadConfig for multi-token prediction layers, and as `symbols`."""
    if architecture.mtp_num_layers:
        raise BadConfig(
            f"{architecture.name}: {architecture.mtp_num_layers} multi-token prediction layers, which are not supported in the"
            " layers of HybridModel",
            "keep megatron-core's GPTModel, or drop them with mtp_num_layers 0",
        )
    return "".join(symbols(architecture, layer) for layer in range(architecture.num_layers))


def positions(layer: int, has_single_parts: bool) -> tuple[int, int]:
    """The numbers of a block's mixer and MLP among the layers of HybridModel, all from 0."""
    return (layer, layer) if has_single_parts else (2 * layer, 2 * layer + 1)


def parse(text: str, name: str, *, with_mamba: bool = False, has_single_parts: bool = False) -> Pattern:
    """Parse a pattern of mixers and MLPs in turns, or of any order if its blocks are single parts.

    Raises BadConfig, naming `name` and the kind of layer, for any other, and for Mamba-2 unless `with_mamba`.
    """
    decoder, has_prediction, prediction = text.partition(PREDICTION)
    if has_prediction and prediction.strip(PREDICTION):
        raise BadConfig(
            f"{name}: the layer pattern {text!r:.80} has multi-token prediction layers ({prediction!r:.20}), which are not"
            " supported in the layers of HybridModel",
            "keep megatron-core's GPTModel for them",
        )
    mixers = {symbol: kind for kind, symbol in MIXERS.items()}
    mlps = {symbol: has_experts for has_experts, symbol in MLPS.items()}
    for number, symbol in enumerate(decoder.replace(STAGE_BORDER, "")):
        if symbol in UNSUPPORTED and not (with_mamba and symbol == MIXERS[MAMBA]):
            raise BadConfig(
                f"{name}: layer {number} of the layer pattern {text!r:.80} is {UNSUPPORTED[symbol]}, which is not supported"
            )
        if symbol not in mixers and symbol not in mlps:
            known = " ".join((*mixers, *mlps))
            raise BadConfig(
                f"{name}: {symbol!r} in the layer pattern {text!r:.80} is no kind of layer", f"known here are {known}"
            )
    blocks_of = _single_parts if has_single_parts else _blocks
    stages = [blocks_of(stage, mixers, mlps) for stage in decoder.split(STAGE_BORDER)]
    if not decoder or None in stages:
        raise BadConfig(
            f"{name}: the layer pattern {text!r:.80} is not attention and an MLP in turns, in each pipeline stage",
            "known here are patterns of the pairs *- *E +- +E",
        )
    known_stages = [stage for stage in stages if stage is not None]
    blocks = tuple(block for stage in known_stages for block in stage)
    return Pattern(blocks, tuple(map(len, known_stages)) if len(stages) > 1 else (), has_single_parts)


def _single_parts(stage: str, mixers: Mapping[str, str], mlps: Mapping[str, bool]) -> list[tuple[str, bool]] | None:
    return [(mixers.get(symbol, NO_MIXER), mlps.get(symbol, False)) for symbol in stage]


def _blocks(stage: str, mixers: Mapping[str, str], mlps: Mapping[str, bool]) -> list[tuple[str, bool]] | None:
    """The blocks of a stage, None if mixers and MLPs do not take turns in it."""
    pairs = list(zip(stage[::2], stage[1::2], strict=False))
    if len(stage) % 2 or any(mixer not in mixers or mlp not in mlps for mixer, mlp in pairs):
        return None
    return [(mixers[mixer], mlps[mlp]) for mixer, mlp in pairs]


def stored(arguments: Mapping[str, Any]) -> str | None:
    """The pattern in Megatron's arguments, None for a GPTModel."""
    return next((arguments[name] for name in ARGUMENTS if isinstance(arguments.get(name), str) and arguments[name]), None)


def to_decoder(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    """GPTModel's arguments for the model that HybridModel's `arguments` describe. GPTModel's arguments are returned unchanged.

    Raises BadConfig for a pattern with other layers than attention and MLPs, and for settings that contradict the pattern.
    """
    text = stored(arguments)
    if text is None:
        return dict(arguments)
    has_single_parts = MIXERS[MAMBA] in text and MAMBA_LAYERS not in arguments
    pattern = parse(text, name, with_mamba=True, has_single_parts=has_single_parts)
    result = {key: value for key, value in arguments.items() if key not in (*ARGUMENTS, *_WITHOUT_STATE_SPACE)}
    if tuple(result.get("spec") or ()) in SPECS:
        del result["spec"]
    if result.get("position_embedding_type") == WITHOUT_POSITIONS:
        result |= {"position_embedding_type": "rope", "no_rope_freq": 1}
    kinds = {kind for kind, _ in pattern.blocks} - {MAMBA, NO_MIXER}
    if len(kinds) > 1:
        raise BadConfig(f"{name}: the layer pattern {text!r:.80} has attention of two kinds, and megatron-core takes one")
    if result.get("no_rope_freq"):
        result["no_rope_freq"] = blocks_without_rotation(result["no_rope_freq"], pattern, name)
    result |= {"num_layers": len(pattern.blocks), "multi_latent_attention": kinds == {LATENT_ATTENTION}}
    if has_single_parts:
        return result | _single_part_layers(pattern, text, name)
    if MIXERS[MAMBA] in text and pattern.layers_with(MAMBA) != list(arguments[MAMBA_LAYERS]):
        raise BadConfig(f"{name}: the layer pattern {text!r:.80} and {MAMBA_LAYERS} contradict each other")
    frequency = pattern.expert_frequency
    if not any(frequency):
        result["num_experts"] = None
    elif not result.get("num_experts"):
        raise BadConfig(f"{name}: the layer pattern {text!r:.80} has experts, and num_experts is not set")
    else:
        result["moe_layer_freq"] = frequency
    if result.get("window_attn_skip_freq"):
        result["window_attn_skip_freq"] = _windows_of_blocks(result["window_attn_skip_freq"], pattern, name)
    return result


def _single_part_layers(pattern: Pattern, text: str, name: str) -> dict[str, Any]:
    mlps = pattern.layers_with(NO_MIXER)
    with_experts = [layer for layer in mlps if pattern.blocks[layer][1]]
    if with_experts and with_experts != mlps:
        raise BadConfig(f"{name}: the layer pattern {text!r:.80} has experts in some MLPs, and here all have them, or none")
    experts = {} if with_experts else {"num_experts": None}
    return {MAMBA_LAYERS: pattern.layers_with(MAMBA), MLP_LAYERS: mlps, "moe_layer_freq": 1, **experts}


def blocks_without_rotation(frequency: Any, pattern: Pattern, name: str) -> list[int]:
    """1 for each block that rotates nothing, from `no_rope_freq`, which counts the layers of HybridModel. Raises BadConfig."""
    layers = [positions(block, pattern.has_single_parts)[0] for block in range(len(pattern.blocks))]
    count = len(layers) if pattern.has_single_parts else 2 * len(layers)
    if isinstance(frequency, list | tuple) and len(frequency) == count:
        return [int(bool(frequency[layer])) for layer in layers]
    if type(frequency) is not int or frequency < 1 or count % frequency:
        raise BadConfig(f"{name}: no_rope_freq is {frequency!r:.80}, and the layer pattern has {count} layers")
    return [int((layer + 1) % frequency == 0) for layer in layers]


def _windows_of_blocks(frequency: Any, pattern: Pattern, name: str) -> list[int]:
    """1 for each block with a window, from `window_attn_skip_freq`, which counts the layers of HybridModel."""
    layers = 2 * len(pattern.blocks)
    if isinstance(frequency, list | tuple):
        if len(frequency) != layers:
            raise BadConfig(
                f"{name}: window_attn_skip_freq has {len(frequency)} layers, and the layer pattern has {layers}",
                "HybridModel counts attention and MLP as layers of their own",
            )
        return [int(bool(has_window)) for has_window in frequency[::2]]
    if type(frequency) is not int:
        raise BadConfig(f"{name}: window_attn_skip_freq is {frequency!r:.80}, neither a number of layers nor a list of 0 and 1")
    return [int((2 * block + 1) % frequency != 0) for block in range(len(pattern.blocks))]


def from_decoder(arguments: Mapping[str, Any], architecture: Architecture) -> dict[str, Any]:
    """HybridModel's arguments, from GPTModel's for the same architecture. Raises BadConfig as `of_architecture`."""
    pattern = of_architecture(architecture)
    # The list of Mamba layers tells blocks with two parts from layers with one part.
    unsaid = ("moe_layer_freq", *((MAMBA_LAYERS, MLP_LAYERS) if architecture.mlp_layers else ()))
    result = {key: value for key, value in arguments.items() if key not in unsaid}
    result |= {"num_layers": len(pattern), ARGUMENTS[0]: pattern, "spec": list(SPEC)}
    if architecture.no_rope_freq == 1:
        result["position_embedding_type"] = WITHOUT_POSITIONS
        del result["no_rope_freq"]
    elif architecture.no_rope_freq:
        unrotated = {
            positions(layer, bool(architecture.mlp_layers))[0]
            for layer in range(architecture.num_layers)
            if not architecture.rotates(layer)
        }
        result["no_rope_freq"] = [int(layer in unrotated) for layer in range(len(pattern))]
    if architecture.window_attn_skip_freq:
        # MLPs have no window; their numbers count all the same.
        windows = [architecture.window(layer) is not None for layer in range(architecture.num_layers)]
        result["window_attn_skip_freq"] = [int(has_window) for window in windows for has_window in (window, False)]
    return result
