"""The Qwen3 family: Llama with QK layernorm.

RoPE in TorchTitan's Qwen3 pairs channel i of a head with channel i + head_dim / 2, as in Hugging Face and unlike in TorchTitan's
Llama: queries and keys are not permuted.
"""

from collections.abc import Mapping

from lt_convert.weights.families import llama
from lt_convert.weights.families.llama import KEY, LAYER, MEGATRON_LAYER, QUERY, TORCHTITAN_LAYER
from lt_convert.weights.mapping import Family, Shape, Table
from lt_convert.weights.weight_ops import Rows
from lt_shared.models.architecture import Architecture

QUERY_NORM, KEY_NORM = (f"{LAYER}self_attn.{letter}_norm.weight" for letter in "qk")


def norms(architecture: Architecture) -> dict[str, Shape]:
    return {QUERY_NORM: (architecture.kv_channels,), KEY_NORM: (architecture.kv_channels,)}


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    return llama.decoder(architecture, llama.attention(architecture) | norms(architecture) | llama.feed_forward(architecture))


MEGATRON_NORMS: Table = {
    f"{MEGATRON_LAYER}self_attention.q_layernorm.weight": Rows(QUERY_NORM),
    f"{MEGATRON_LAYER}self_attention.k_layernorm.weight": Rows(KEY_NORM),
}

TORCHTITAN_TABLE: Table = {
    **llama.TORCHTITAN_TABLE,
    f"{TORCHTITAN_LAYER}attention.qkv_linear.wq.weight": Rows(QUERY),
    f"{TORCHTITAN_LAYER}attention.qkv_linear.wk.weight": Rows(KEY),
    f"{TORCHTITAN_LAYER}attention.q_norm.weight": Rows(QUERY_NORM),
    f"{TORCHTITAN_LAYER}attention.k_norm.weight": Rows(KEY_NORM),
}

QWEN3 = Family(
    name="qwen3",
    shapes=shapes,
    tables=llama.megatron_tables({**llama.MEGATRON_TABLE, **MEGATRON_NORMS}) | llama.torchtitan_tables(TORCHTITAN_TABLE),
    extra_state_modules=(
        *llama.EXTRA_STATE_MODULES,
        f"{MEGATRON_LAYER}self_attention.q_layernorm",
        f"{MEGATRON_LAYER}self_attention.k_layernorm",
    ),
)
