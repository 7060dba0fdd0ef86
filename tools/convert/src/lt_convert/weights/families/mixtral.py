"""The Mixtral family: Llama whose feed-forward part is a number of experts, and a router that chooses among them.

torch_dist stacks the experts of a layer in one tensor, the same for experts computed one by one and for grouped ones; the older
format of one file a rank has the names of the layers in use. TransformerEngine's layers keep the norm before experts apart, the
local ones store it there where it is without experts: both are written, and either is read. TorchTitan has no such models.
"""

from collections.abc import Mapping

from lt_convert.weights.families import llama
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER, MLP_NORM
from lt_convert.weights.mapping import MEGATRON, MEGATRON_LOCAL, MEGATRON_TE, Family, Shape, Table
from lt_convert.weights.weight_ops import Again, Experts, Rows
from lt_shared.architecture import Architecture

ROUTER = f"{LAYER}block_sparse_moe.gate.weight"
GATE, DOWN, UP = (f"{LAYER}block_sparse_moe.experts.{{expert}}.w{part}.weight" for part in "123")


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    hidden, ffn = architecture.hidden_size, architecture.ffn_hidden_size
    experts: dict[str, Shape] = {
        ROUTER: (architecture.num_experts or 0, hidden),
        GATE: (ffn, hidden),
        UP: (ffn, hidden),
        DOWN: (hidden, ffn),
    }
    return llama.decoder(architecture, llama.attention(architecture) | experts)


COMMON: Table = {
    **{pattern: op for pattern, op in llama.MEGATRON_TABLE.items() if ".mlp." not in pattern},
    f"{MEGATRON_LAYER}pre_mlp_layernorm.weight": Rows(MLP_NORM),
    f"{MEGATRON_LAYER}mlp.router.weight": Rows(ROUTER),
}

# In the file of a rank: experts computed one by one, and grouped.
EXPERTS_ONE_BY_ONE: Table = {
    f"{MEGATRON_LAYER}mlp.experts.local_experts.{{expert}}.linear_fc1.weight": Rows(GATE, UP),
    f"{MEGATRON_LAYER}mlp.experts.local_experts.{{expert}}.linear_fc2.weight": Rows(DOWN),
    f"{MEGATRON_LAYER}mlp.experts.linear_fc1.weight{{expert}}": Again(Rows(GATE, UP)),
    f"{MEGATRON_LAYER}mlp.experts.linear_fc2.weight{{expert}}": Again(Rows(DOWN)),
}

MIXTRAL = Family(
    name="mixtral",
    shapes=shapes,
    tables={
        MEGATRON: {
            **COMMON,
            f"{MEGATRON_LAYER}mlp.linear_fc1.layer_norm_weight": Again(Rows(MLP_NORM), written=True),
            f"{MEGATRON_LAYER}mlp.experts.experts.linear_fc1.weight": Experts(Rows(GATE, UP)),
            f"{MEGATRON_LAYER}mlp.experts.experts.linear_fc2.weight": Experts(Rows(DOWN)),
        },
        MEGATRON_TE: {**COMMON, **EXPERTS_ONE_BY_ONE},
        MEGATRON_LOCAL: {**llama.renamed(COMMON, llama.LOCAL_NAMES), **EXPERTS_ONE_BY_ONE},
    },
    stateful=(
        *(module for module in llama.STATEFUL if ".mlp." not in module),
        f"{MEGATRON_LAYER}pre_mlp_layernorm",
        f"{MEGATRON_LAYER}mlp.experts.experts.linear_fc1.{{expert}}",
        f"{MEGATRON_LAYER}mlp.experts.experts.linear_fc2.{{expert}}",
    ),
)
