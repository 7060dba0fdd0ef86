"""The Bamba family: Mamba-2 in most layers, attention in the others, and Llama's MLP in each."""

from collections.abc import Mapping

from lt_convert.weights.families import llama, mamba
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER
from lt_convert.weights.mapping import MEGATRON, Family, Shape, Table
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT, OutputLayer, PaddedRows, Rows
from lt_shared.models.architecture import Architecture

_FINAL_NORM, _MLP_NORM = "model.final_layernorm.weight", f"{LAYER}pre_ff_layernorm.weight"
_GATE, _UP, _DOWN = (f"{LAYER}feed_forward.{name}_proj.weight" for name in ("gate", "up", "down"))


def decoder(architecture: Architecture, mixers: Mapping[str, Shape]) -> dict[str, Shape]:
    """The tensors of a model whose layers have the tensors `mixers` and an MLP."""
    hidden, ffn = architecture.hidden_size, architecture.ffn_hidden_size
    mlp: dict[str, Shape] = {_GATE: (ffn, hidden), _UP: (ffn, hidden), _DOWN: (hidden, ffn), _MLP_NORM: (hidden,)}
    shapes = llama.decoder(architecture, {**mixers, **mlp})
    return {_FINAL_NORM if name == llama.FINAL_NORM else name: shape for name, shape in shapes.items()}


def _shapes(architecture: Architecture) -> Mapping[str, Shape]:
    return decoder(architecture, mamba.hybrid_shapes(architecture))


# All but the mixers.
COMMON_TABLE: Table = {
    "embedding.word_embeddings.weight": PaddedRows(llama.EMBEDDING),
    f"{MEGATRON_LAYER}mlp.linear_fc1.layer_norm_weight": Rows(_MLP_NORM),
    f"{MEGATRON_LAYER}mlp.linear_fc1.weight": Rows(_GATE, _UP),
    f"{MEGATRON_LAYER}mlp.linear_fc2.weight": Rows(_DOWN),
    "decoder.final_layernorm.weight": Rows(_FINAL_NORM),
    "output_layer.weight": OutputLayer(PaddedRows(OUTPUT_WEIGHT), PaddedRows(llama.EMBEDDING)),
}
BAMBA = Family(
    name="bamba",
    shapes=_shapes,
    tables={MEGATRON: {**mamba.HYBRID_TABLE, **COMMON_TABLE}},
    extra_state_modules=(
        *mamba.HYBRID_EXTRA_STATE_MODULES,
        *(f"{MEGATRON_LAYER}mlp.linear_fc{number}" for number in (1, 2)),
        "decoder.final_layernorm",
    ),
)
