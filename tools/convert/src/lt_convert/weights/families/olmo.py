"""The families OLMo 2 and OLMo 3: Llama with norms behind attention and MLP, and norms of queries and keys over all heads.

OLMoE has such norms of queries and keys, the other norms as Llama, and experts in every layer. OLMo 1's norms have no parameters.

megatron-core has no such layers. torch_dist has the names of Megatron-Bridge for norms behind a linear layer, which lt-train's
models have, too; Megatron's legacy format and TorchTitan have no such models.
"""

from collections.abc import Mapping

from lt_convert.weights.families import expert_layers, llama, mixtral, qwen3, qwen3_moe
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER
from lt_convert.weights.families.qwen3 import KEY_NORM, QUERY_NORM
from lt_convert.weights.mapping import MEGATRON, Family, Shape, Table
from lt_convert.weights.weight_ops import Rows
from lt_shared.models.architecture import Architecture

# Under Llama's name of its norm before the MLP, this one is behind attention.
AFTER_ATTENTION, AFTER_MLP = f"{LAYER}post_attention_layernorm.weight", f"{LAYER}post_feedforward_layernorm.weight"


def norms_over_all_heads(architecture: Architecture) -> dict[str, Shape]:
    return {QUERY_NORM: (architecture.query_size,), KEY_NORM: (architecture.kv_size,)}


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    attention = {name: shape for name, shape in llama.attention(architecture).items() if name != llama.ATTENTION_NORM}
    norms = norms_over_all_heads(architecture) | {AFTER_MLP: (architecture.hidden_size,)}
    return llama.decoder(architecture, attention | norms | llama.feed_forward(architecture))


NORMS_BEHIND: Table = {
    f"{MEGATRON_LAYER}self_attention.linear_proj.post_layernorm.weight": Rows(AFTER_ATTENTION),
    f"{MEGATRON_LAYER}mlp.linear_fc2.post_layernorm.weight": Rows(AFTER_MLP),
}
MEGATRON_TABLE: Table = {
    **{pattern: op for pattern, op in llama.MEGATRON_TABLE.items() if "layer_norm" not in pattern},
    **qwen3.MEGATRON_NORMS,
    **NORMS_BEHIND,
}


def _shapes_without_norms(architecture: Architecture) -> Mapping[str, Shape]:
    decoder = llama.decoder(architecture, llama.attention(architecture) | llama.feed_forward(architecture))
    return {name: shape for name, shape in decoder.items() if "norm" not in name}


OLMO1 = Family(
    name="olmo1",
    shapes=_shapes_without_norms,
    tables={MEGATRON: llama.MEGATRON_TABLE},
    extra_state_modules=llama.EXTRA_STATE_MODULES,
)
OLMO = Family(
    name="olmo",
    shapes=shapes,
    tables={MEGATRON: MEGATRON_TABLE},
    extra_state_modules=llama.EXTRA_STATE_MODULES,
)


def _olmoe_shapes(architecture: Architecture) -> Mapping[str, Shape]:
    attention = llama.attention(architecture) | norms_over_all_heads(architecture)
    return llama.decoder(architecture, attention | expert_layers.expert_shapes(architecture, LAYER))


_OLMOE_TABLES = mixtral.megatron_tables(qwen3_moe.ROUTER, qwen3_moe.GATE, qwen3_moe.UP, qwen3_moe.DOWN, qwen3.MEGATRON_NORMS)
OLMOE = Family(
    name="olmoe",
    shapes=_olmoe_shapes,
    tables={MEGATRON: _OLMOE_TABLES[MEGATRON]},
    extra_state_modules=mixtral.EXTRA_STATE_MODULES,
)
