"""The Mixtral family: Llama with a mixture of experts in place of the MLP.

torch_dist stacks the experts of a layer in one tensor, for SequentialMLP and for grouped GEMM alike; Megatron's legacy format has
the names of the layers in use. In torch_dist the norm before the experts is `pre_mlp_layernorm` for
TransformerEngine layers, and has the name of a dense model's norm for local layers: both names are written, and either is read.
TorchTitan has no such models.
"""

from collections.abc import Mapping

from lt_convert.weights.families import llama
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER, MLP_NORM
from lt_convert.weights.mapping import MEGATRON, MEGATRON_LOCAL, MEGATRON_TE, Family, Shape, Table
from lt_convert.weights.weight_ops import Alias, Experts, Rows
from lt_shared.models.architecture import Architecture

ROUTER = f"{LAYER}block_sparse_moe.gate.weight"
GATE, DOWN, UP = (f"{LAYER}block_sparse_moe.experts.{{expert}}.w{digit}.weight" for digit in "123")


def experts(architecture: Architecture) -> dict[str, Shape]:
    hidden, ffn = architecture.hidden_size, architecture.ffn_hidden_size
    return {ROUTER: (architecture.num_experts or 0, hidden), GATE: (ffn, hidden), UP: (ffn, hidden), DOWN: (hidden, ffn)}


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    return llama.decoder(architecture, llama.attention(architecture) | experts(architecture))


EXTRA_STATE_MODULES = (
    *(module for module in llama.EXTRA_STATE_MODULES if ".mlp." not in module),
    f"{MEGATRON_LAYER}pre_mlp_layernorm",
    f"{MEGATRON_LAYER}mlp.experts.experts.linear_fc1.{{expert}}",
    f"{MEGATRON_LAYER}mlp.experts.experts.linear_fc2.{{expert}}",
)


def megatron_tables(router: str, gate: str, up: str, down: str, attention: Table) -> dict[str, Table]:
    """Return Megatron's tables for a model with experts in every layer, from the experts' canonical names.

    `attention` has the rows that its attention adds to Llama's."""
    common: Table = {
        **{pattern: op for pattern, op in llama.MEGATRON_TABLE.items() if ".mlp." not in pattern},
        **attention,
        f"{MEGATRON_LAYER}pre_mlp_layernorm.weight": Rows(MLP_NORM),
        f"{MEGATRON_LAYER}mlp.router.weight": Rows(router),
    }
    # In the legacy file of a rank: the names in SequentialMLP, and in grouped GEMM.
    legacy_experts: Table = {
        f"{MEGATRON_LAYER}mlp.experts.local_experts.{{expert}}.linear_fc1.weight": Rows(gate, up),
        f"{MEGATRON_LAYER}mlp.experts.local_experts.{{expert}}.linear_fc2.weight": Rows(down),
        f"{MEGATRON_LAYER}mlp.experts.linear_fc1.weight{{expert}}": Alias(Rows(gate, up)),
        f"{MEGATRON_LAYER}mlp.experts.linear_fc2.weight{{expert}}": Alias(Rows(down)),
    }
    return {
        MEGATRON: {
            **common,
            f"{MEGATRON_LAYER}mlp.linear_fc1.layer_norm_weight": Alias(Rows(MLP_NORM), written=True),
            f"{MEGATRON_LAYER}mlp.experts.experts.linear_fc1.weight": Experts(Rows(gate, up)),
            f"{MEGATRON_LAYER}mlp.experts.experts.linear_fc2.weight": Experts(Rows(down)),
        },
        MEGATRON_TE: {**common, **legacy_experts},
        MEGATRON_LOCAL: {**llama.renamed(common, llama.LOCAL_NAMES), **legacy_experts},
    }


MIXTRAL = Family(
    name="mixtral",
    shapes=shapes,
    tables=megatron_tables(ROUTER, GATE, UP, DOWN, {}),
    extra_state_modules=EXTRA_STATE_MODULES,
)
