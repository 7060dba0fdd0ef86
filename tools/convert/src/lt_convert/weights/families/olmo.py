"""The families OLMo 2 and OLMo 3: Llama with norms behind attention and MLP, and norms of queries and keys over all heads.

megatron-core has no such layers. torch_dist has the names of Megatron-Bridge for norms behind a linear layer, which lt-train's
models have, too; Megatron's legacy format and TorchTitan have no such models.
"""

from collections.abc import Mapping

from lt_convert.weights.families import llama, qwen3
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER
from lt_convert.weights.families.qwen3 import KEY_NORM, QUERY_NORM
from lt_convert.weights.mapping import MEGATRON, Family, Shape, Table
from lt_convert.weights.weight_ops import Rows
from lt_shared.models.architecture import Architecture

# Under Llama's name of its norm before the MLP, this one is behind attention.
AFTER_ATTENTION, AFTER_MLP = f"{LAYER}post_attention_layernorm.weight", f"{LAYER}post_feedforward_layernorm.weight"


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    attention = {name: shape for name, shape in llama.attention(architecture).items() if name != llama.ATTENTION_NORM}
    norms: dict[str, Shape] = {
        QUERY_NORM: (architecture.query_size,),
        KEY_NORM: (architecture.kv_size,),
        AFTER_MLP: (architecture.hidden_size,),
    }
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

OLMO = Family(
    name="olmo",
    shapes=shapes,
    tables={MEGATRON: MEGATRON_TABLE},
    extra_state_modules=llama.EXTRA_STATE_MODULES,
)
