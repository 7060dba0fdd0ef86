"""The Apertus family: Qwen3's attention, an MLP without gates, and an activation (xIELU) with two learned numbers in each layer.

Files also have the activation's two constants: transformers 5.23 leaves those that a file lacks uninitialized. megatron-core has
no such activation: only torch_dist and lt-train's models have it, under megatron-core's name of an activation.
"""

from collections.abc import Mapping

from lt_convert.weights.families import llama, qwen3
from lt_convert.weights.families.llama import DOWN, LAYER, MEGATRON_LAYER, UP
from lt_convert.weights.mapping import MEGATRON, XIELU_CONSTANTS, Family, Shape, Table
from lt_convert.weights.weight_ops import Rows
from lt_shared.models.architecture import Architecture

_ATTENTION_NORM, _MLP_NORM = f"{LAYER}attention_layernorm.weight", f"{LAYER}feedforward_layernorm.weight"
_OURS, _THEIRS = f"{LAYER}mlp.", f"{MEGATRON_LAYER}mlp."
_NUMBERS = {f"{_OURS}act_fn.{name}": f"{_THEIRS}activation_func.{name}" for name in ("alpha_p", "alpha_n")}
_CONSTANTS = {f"{_OURS}{name}": f"{_THEIRS}{name.replace('act_fn', 'activation_func')}" for name in XIELU_CONSTANTS}


def _shapes(architecture: Architecture) -> Mapping[str, Shape]:
    hidden, ffn = architecture.hidden_size, architecture.ffn_hidden_size
    names = {llama.ATTENTION_NORM: _ATTENTION_NORM, llama.MLP_NORM: _MLP_NORM}
    attention = {names.get(name, name): shape for name, shape in llama.attention(architecture).items()}
    layer: dict[str, Shape] = {**attention, **qwen3.norms(architecture), UP: (ffn, hidden), DOWN: (hidden, ffn)}
    activation: dict[str, Shape] = {**dict.fromkeys(_NUMBERS, (1,)), **dict.fromkeys(_CONSTANTS, ())}
    return llama.decoder(architecture, layer | activation)


_TABLE: Table = {
    **llama.MEGATRON_TABLE,
    **qwen3.MEGATRON_NORMS,
    f"{MEGATRON_LAYER}self_attention.linear_qkv.layer_norm_weight": Rows(_ATTENTION_NORM),
    f"{MEGATRON_LAYER}mlp.linear_fc1.layer_norm_weight": Rows(_MLP_NORM),
    f"{MEGATRON_LAYER}mlp.linear_fc1.weight": Rows(UP),
    **{theirs: Rows(name) for name, theirs in (_NUMBERS | _CONSTANTS).items()},
}
APERTUS = Family("apertus", _shapes, {MEGATRON: _TABLE}, llama.EXTRA_STATE_MODULES)
