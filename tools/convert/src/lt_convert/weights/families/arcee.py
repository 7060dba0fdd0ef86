"""Families whose MLP has no gate: Arcee, with Llama's other tensors; Nemotron and StarCoder 2, whose norms have biases.

Nemotron's weights of norms are stored without the 1 that is added, in all formats. TorchTitan has no such models.
"""

from collections.abc import Mapping

from lt_convert.weights.families import llama
from lt_convert.weights.families.llama import DOWN, LAYER, MEGATRON_LAYER, UP
from lt_convert.weights.mapping import Family, Shape, Table
from lt_convert.weights.weight_ops import QueryGroups, Rows
from lt_shared.models.architecture import Architecture

# The canonical names of norms, with Megatron's.
_NORMS = {
    f"{LAYER}input_layernorm.": f"{MEGATRON_LAYER}self_attention.linear_qkv.layer_norm_",
    f"{LAYER}post_attention_layernorm.": f"{MEGATRON_LAYER}mlp.linear_fc1.layer_norm_",
    "model.norm.": "decoder.final_layernorm.",
}
_FIRST, _SECOND = f"{LAYER}mlp.c_fc.", f"{LAYER}mlp.c_proj."
_PROJECTIONS = {letter: f"{LAYER}self_attn.{letter}_proj.bias" for letter in "qkvo"}


def _without_gate(architecture: Architecture) -> dict[str, Shape]:
    hidden, ffn = architecture.hidden_size, architecture.ffn_hidden_size
    return {UP: (ffn, hidden), DOWN: (hidden, ffn)}


def _shapes(architecture: Architecture) -> Mapping[str, Shape]:
    return llama.decoder(architecture, llama.attention(architecture) | _without_gate(architecture))


def _with_norm_biases(architecture: Architecture, layer: Mapping[str, Shape]) -> dict[str, Shape]:
    biases: dict[str, Shape] = {f"{name}bias": (architecture.hidden_size,) for name in _NORMS}
    final = {name: biases.pop(name) for name in list(biases) if LAYER not in name}
    return llama.decoder(architecture, {**layer, **biases}) | final


def _nemotron_shapes(architecture: Architecture) -> Mapping[str, Shape]:
    return _with_norm_biases(architecture, llama.attention(architecture) | _without_gate(architecture))


def _starcoder2_shapes(architecture: Architecture) -> Mapping[str, Shape]:
    hidden, ffn = architecture.hidden_size, architecture.ffn_hidden_size
    queries, keys = architecture.query_size, architecture.kv_size
    weights: dict[str, Shape] = {f"{_FIRST}weight": (ffn, hidden), f"{_SECOND}weight": (hidden, ffn)}
    sizes = {f"{_FIRST}bias": ffn, f"{_SECOND}bias": hidden}
    sizes |= dict(zip(_PROJECTIONS.values(), (queries, keys, keys, hidden), strict=True))
    biases: dict[str, Shape] = {name: (size,) for name, size in sizes.items()} if architecture.add_bias_linear else {}
    return _with_norm_biases(architecture, llama.attention(architecture) | weights | biases)


_TABLE: Table = {**llama.MEGATRON_TABLE, f"{MEGATRON_LAYER}mlp.linear_fc1.weight": Rows(UP)}
_NEMOTRON_TABLE: Table = {**_TABLE, **{f"{theirs}bias": Rows(f"{ours}bias") for ours, theirs in _NORMS.items()}}
_STARCODER2_TABLE: Table = {
    **_NEMOTRON_TABLE,
    f"{MEGATRON_LAYER}self_attention.linear_qkv.bias": QueryGroups(*(_PROJECTIONS[letter] for letter in "qkv")),
    f"{MEGATRON_LAYER}self_attention.linear_proj.bias": Rows(_PROJECTIONS["o"]),
    **{f"{MEGATRON_LAYER}mlp.linear_fc1.{kind}": Rows(f"{_FIRST}{kind}") for kind in ("weight", "bias")},
    **{f"{MEGATRON_LAYER}mlp.linear_fc2.{kind}": Rows(f"{_SECOND}{kind}") for kind in ("weight", "bias")},
}

ARCEE = Family("arcee", _shapes, llama.megatron_tables(_TABLE), llama.EXTRA_STATE_MODULES)
NEMOTRON = Family("nemotron", _nemotron_shapes, llama.megatron_tables(_NEMOTRON_TABLE), llama.EXTRA_STATE_MODULES)
STARCODER2 = Family("starcoder2", _starcoder2_shapes, llama.megatron_tables(_STARCODER2_TABLE), llama.EXTRA_STATE_MODULES)
