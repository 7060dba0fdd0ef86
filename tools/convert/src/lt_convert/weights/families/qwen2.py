"""The Qwen2 family, Qwen2 and Qwen2.5: Llama with biases of queries, keys and values. TorchTitan has no such models."""

from collections.abc import Mapping

from lt_convert.weights.families import llama
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER
from lt_convert.weights.mapping import Family, Shape, Table
from lt_convert.weights.weight_ops import QueryGroups
from lt_shared.models.architecture import Architecture

QUERY_BIAS, KEY_BIAS, VALUE_BIAS = (f"{LAYER}self_attn.{letter}_proj.bias" for letter in "qkv")


def biases(architecture: Architecture) -> dict[str, Shape]:
    queries, keys = architecture.query_size, architecture.kv_size
    return {QUERY_BIAS: (queries,), KEY_BIAS: (keys,), VALUE_BIAS: (keys,)}


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    attention = llama.attention(architecture) | biases(architecture)
    return llama.decoder(architecture, attention | llama.feed_forward(architecture))


MEGATRON_TABLE: Table = {
    **llama.MEGATRON_TABLE,
    f"{MEGATRON_LAYER}self_attention.linear_qkv.bias": QueryGroups(QUERY_BIAS, KEY_BIAS, VALUE_BIAS),
}

QWEN2 = Family(
    name="qwen2",
    shapes=shapes,
    tables=llama.megatron_tables(MEGATRON_TABLE),
    extra_state_modules=llama.EXTRA_STATE_MODULES,
)
