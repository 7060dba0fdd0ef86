"""DeepSeek's multi-token prediction layers: behind the last layer, one that predicts the token after the next, and so on.

Such a layer joins the normed embedding of the next token and the normed output of the layer before it by a projection, and
is a layer of the model otherwise, with a norm of its own in front of the output layer. Files of Hugging Face number it as one
more layer of the model, and repeat the embedding and the output layer in it: the repetitions are dropped where they are equal,
and written again. Megatron up to 0.16 calls the layer inside `transformer_layer`, later versions `mtp_model_layer`.
"""

from collections.abc import Callable

from lt_convert.weights.families import expert_layers
from lt_convert.weights.families.expert_layers import PREDICTION
from lt_convert.weights.families.llama import EMBEDDING, LAYER, decoder
from lt_convert.weights.families.llama import MEGATRON_LAYER as DECODER_LAYER
from lt_convert.weights.mapping import Shape, Table
from lt_convert.weights.placeholders import MTP
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT, Alias, OutputLayer, Rows, WeightOp
from lt_shared.models.architecture import Architecture

MEGATRON_LAYER = f"mtp.layers.{MTP}."
MEGATRON_BLOCK, NEWER_BLOCK = f"{MEGATRON_LAYER}transformer_layer.", f"{MEGATRON_LAYER}mtp_model_layer."
TORCHTITAN_LAYER = f"mtp_layers.{MTP}."
_JOINTS = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "shared_head.norm": "final_layernorm"}


def shapes(architecture: Architecture) -> dict[str, Shape]:
    """Return the tensors that a prediction layer adds to a decoder layer."""
    hidden = architecture.hidden_size
    sizes: dict[str, Shape] = dict.fromkeys(_JOINTS, (hidden,)) | {"eh_proj": (hidden, 2 * hidden)}
    return {f"{PREDICTION}{name}.weight": shape for name, shape in sizes.items()} if architecture.mtp_num_layers else {}


def decoder_shapes(architecture: Architecture, attention: Callable[[Architecture, str], dict[str, Shape]]) -> dict[str, Shape]:
    """Return the shapes of dense, expert and prediction layers; `attention` gives a layer's shapes without the MLP."""
    layers = attention(architecture, LAYER) | expert_layers.dense_shapes(architecture) | expert_layers.expert_shapes(architecture)
    if architecture.mtp_num_layers:
        block = attention(architecture, PREDICTION) | expert_layers.expert_shapes(architecture, PREDICTION)
        layers |= shapes(architecture) | block
    return decoder(architecture, layers)


def extra_state_modules(dense: str, experts: str, modules: Callable[[str, str], tuple[str, ...]]) -> tuple[str, ...]:
    """Return the modules with extra state in the decoder of `decoder_shapes`.

    `modules` gives a layer's modules without the MLP, from the prefixes of dense layers and of layers with experts."""
    return (
        *modules(DECODER_LAYER, experts),
        *expert_layers.dense_extra_states(dense),
        *expert_layers.expert_extra_states(experts),
        *modules(MEGATRON_BLOCK, MEGATRON_BLOCK),
        *expert_layers.expert_extra_states(MEGATRON_BLOCK),
        *(f"{MEGATRON_LAYER}{name}" for name in ("enorm", "hnorm", "eh_proj", "final_layernorm")),
        "decoder.final_layernorm",
    )


def megatron_table(block: Table) -> Table:
    """Return the table of the prediction layers; `block` is the table of the inner layer under its older name."""
    joints: Table = {f"{MEGATRON_LAYER}{theirs}.weight": Rows(f"{PREDICTION}{ours}.weight") for ours, theirs in _JOINTS.items()}
    newer = {name.replace(MEGATRON_BLOCK, NEWER_BLOCK): Alias(op, written=True) for name, op in block.items()}
    return {**joints, **block, **newer}


def torchtitan_table(block: Table) -> Table:
    names = _JOINTS | {"shared_head.norm": "mtp_norm"}
    joints = {f"{TORCHTITAN_LAYER}{theirs}.weight": Rows(f"{PREDICTION}{ours}.weight") for ours, theirs in names.items()}
    return {**joints, **block}


REPEATED: dict[str, WeightOp] = {
    f"{PREDICTION}embed_tokens.weight": Alias(Rows(EMBEDDING), written=True),
    f"{PREDICTION}shared_head.head.weight": Alias(OutputLayer(Rows(OUTPUT_WEIGHT), Rows(EMBEDDING)), written=True),
}
