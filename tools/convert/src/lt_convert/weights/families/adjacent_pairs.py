"""Families whose RoPE pairs adjacent channels: Helium, ERNIE 4.5, and GLM-4 of 2024 and 2025, which fuses gate and up projection.

Megatron's formats get the order of channels in which RoPE pairs channel i with channel i + rotary channels / 2, as in all other
families, so megatron-core computes these models without `--rotary-interleaved`. TorchTitan has no such models. GLM-4 of 2025 has
norms behind attention and MLP, too, which only torch_dist and lt-train's models have.
"""

from collections.abc import Mapping

from lt_convert.weights.families import llama, olmo, phi3, qwen2
from lt_convert.weights.families.llama import KEY, LAYER, MEGATRON_LAYER, QUERY, VALUE
from lt_convert.weights.mapping import MEGATRON, Family, Shape, Table
from lt_convert.weights.weight_ops import QueryGroups, Rows
from lt_shared.models.architecture import Architecture

_AFTER_ATTENTION, _AFTER_MLP = f"{LAYER}post_self_attn_layernorm.weight", f"{LAYER}post_mlp_layernorm.weight"


def _glm_shapes(architecture: Architecture) -> Mapping[str, Shape]:
    return llama.decoder(architecture, _glm_layer(architecture))


def _glm4_shapes(architecture: Architecture) -> Mapping[str, Shape]:
    norms: dict[str, Shape] = dict.fromkeys((_AFTER_ATTENTION, _AFTER_MLP), (architecture.hidden_size,))
    return llama.decoder(architecture, _glm_layer(architecture) | norms)


def _glm_layer(architecture: Architecture) -> dict[str, Shape]:
    hidden, ffn = architecture.hidden_size, architecture.ffn_hidden_size
    biases = qwen2.biases(architecture) if architecture.add_qkv_bias else {}
    return llama.attention(architecture) | biases | {phi3.GATE_UP: (2 * ffn, hidden), llama.DOWN: (hidden, ffn)}


TABLE: Table = {
    **llama.MEGATRON_TABLE,
    f"{MEGATRON_LAYER}self_attention.linear_qkv.weight": QueryGroups(QUERY, KEY, VALUE, adjacent_pairs=True),
}
_BIASES = QueryGroups(qwen2.QUERY_BIAS, qwen2.KEY_BIAS, qwen2.VALUE_BIAS, adjacent_pairs=True)
_GLM_TABLE: Table = {
    **TABLE,
    f"{MEGATRON_LAYER}self_attention.linear_qkv.bias": _BIASES,
    f"{MEGATRON_LAYER}mlp.linear_fc1.weight": Rows(phi3.GATE_UP),
}
_GLM4_TABLE: Table = {
    **_GLM_TABLE,
    **{name: Rows(norm) for name, norm in zip(olmo.NORMS_BEHIND, (_AFTER_ATTENTION, _AFTER_MLP), strict=True)},
}

HELIUM = Family("helium", llama.shapes, llama.megatron_tables(TABLE), llama.EXTRA_STATE_MODULES)
ERNIE4_5 = Family("ernie4_5", llama.shapes, llama.megatron_tables(TABLE), llama.EXTRA_STATE_MODULES)
GLM = Family("glm", _glm_shapes, llama.megatron_tables(_GLM_TABLE), llama.EXTRA_STATE_MODULES)
GLM4 = Family("glm4", _glm4_shapes, {MEGATRON: _GLM4_TABLE}, llama.EXTRA_STATE_MODULES)
