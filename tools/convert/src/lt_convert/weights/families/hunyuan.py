"""The Hunyuan families: Qwen3's tensors, with other names of the norms of queries and keys, which stand behind the rotation."""

from collections.abc import Mapping

from lt_convert.weights.families import llama
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER
from lt_convert.weights.mapping import Family, Shape, Table
from lt_convert.weights.weight_ops import Rows
from lt_shared.models.architecture import Architecture

_QUERY_NORM, _KEY_NORM = (f"{LAYER}self_attn.{name}_layernorm.weight" for name in ("query", "key"))
NORMS: Table = {
    f"{MEGATRON_LAYER}self_attention.q_layernorm.weight": Rows(_QUERY_NORM),
    f"{MEGATRON_LAYER}self_attention.k_layernorm.weight": Rows(_KEY_NORM),
}


def attention(architecture: Architecture) -> dict[str, Shape]:
    norms: dict[str, Shape] = dict.fromkeys((_QUERY_NORM, _KEY_NORM), (architecture.kv_channels,))
    return llama.attention(architecture) | norms


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    return llama.decoder(architecture, attention(architecture) | llama.feed_forward(architecture))


HUNYUAN_V1_DENSE = Family(
    name="hunyuan_v1_dense",
    shapes=shapes,
    tables=llama.megatron_tables({**llama.MEGATRON_TABLE, **NORMS}),
    extra_state_modules=llama.EXTRA_STATE_MODULES,
)
