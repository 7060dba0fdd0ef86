"""The Granite families: Granite 3 has the tensors of Llama; its multipliers are settings. TorchTitan has no such models.

Files of the mixtures, and of Granite 4, fuse gate and up projections, and stack a layer's experts. Without experts, a Granite 4
calls its feed-forward layer `shared_mlp`, the shared expert's name in a layer with experts. A Granite 4 with Mamba-2 layers has
tables of its own, because only some of its layers have attention.
"""

from collections.abc import Mapping

from lt_convert.weights.families import expert_layers, llama, mamba
from lt_convert.weights.families.llama import MLP_NORM
from lt_convert.weights.mapping import MEGATRON, MEGATRON_LOCAL, MEGATRON_TE, Family, Shape, Table
from lt_convert.weights.placeholders import DENSE_LAYER, EXPERT_LAYER
from lt_convert.weights.weight_ops import Alias, Experts, ExpertSlice, Rows, WeightOp
from lt_shared.models.architecture import Architecture

GRANITE = Family(
    name="granite",
    shapes=llama.shapes,
    tables=llama.megatron_tables(llama.MEGATRON_TABLE),
    extra_state_modules=llama.EXTRA_STATE_MODULES,
)
_DENSE, _EXPERT = (f"decoder.layers.{layer}." for layer in (DENSE_LAYER, EXPERT_LAYER))
_ROUTER, _INPUT, _OUTPUT = (
    f"{expert_layers.EXPERT}block_sparse_moe.{name}.weight" for name in ("router.layer", "input_linear", "output_linear")
)
_SHARED_INPUT, _SHARED_OUTPUT = (f"shared_mlp.{name}_linear.weight" for name in ("input", "output"))
# Of an expert.
_OF_EXPERTS: dict[str, WeightOp] = {
    "linear_fc1.weight": ExpertSlice(Rows(_INPUT)),
    "linear_fc2.weight": ExpertSlice(Rows(_OUTPUT)),
}


def _mlp(layer: str, hidden: int, width: int) -> dict[str, Shape]:
    return {f"{layer}{_SHARED_INPUT}": (2 * width, hidden), f"{layer}{_SHARED_OUTPUT}": (hidden, width)}


def _mixers(architecture: Architecture) -> dict[str, Shape]:
    if architecture.mamba is None:
        return llama.attention(architecture)
    return mamba.hybrid_shapes(architecture) | {MLP_NORM: (architecture.hidden_size,)}


def _shapes(architecture: Architecture) -> Mapping[str, Shape]:
    hidden, attention = architecture.hidden_size, _mixers(architecture)
    if architecture.num_experts is None:
        return llama.decoder(architecture, attention | _mlp(expert_layers.DENSE, hidden, architecture.ffn_hidden_size))
    experts, ffn = architecture.num_experts, architecture.expert_size
    routed: dict[str, Shape] = {
        _ROUTER: (experts, hidden),
        _INPUT: (experts, 2 * ffn, hidden),
        _OUTPUT: (experts, hidden, ffn),
    }
    shared = architecture.moe_shared_expert_intermediate_size
    layer = attention | routed | (_mlp(expert_layers.EXPERT, hidden, shared) if shared else {})
    return llama.decoder(architecture, layer)


def _table(stacked: bool) -> Table:
    """Return Megatron's table, with `stacked` experts as in torch_dist, otherwise as in the legacy file of a rank."""
    shared = f"{_EXPERT}mlp.shared_experts."
    experts = f"{_EXPERT}mlp.experts."
    routed: Table = {f"{experts}experts.{name}": Experts(op) for name, op in _OF_EXPERTS.items()}
    if not stacked:
        routed = {f"{experts}local_experts.{{expert}}.{name}": op for name, op in _OF_EXPERTS.items()}
        routed |= {f"{experts}{name}{{expert}}": Alias(op) for name, op in _OF_EXPERTS.items()}
    second: Table = {f"{_EXPERT}mlp.linear_fc1.layer_norm_weight": Alias(Rows(MLP_NORM), written=True)} if stacked else {}
    return {
        **{pattern: op for pattern, op in llama.MEGATRON_TABLE.items() if ".mlp." not in pattern},
        f"{_DENSE}mlp.linear_fc1.layer_norm_weight": Rows(MLP_NORM),
        f"{_DENSE}mlp.linear_fc1.weight": Rows(f"{expert_layers.DENSE}{_SHARED_INPUT}"),
        f"{_DENSE}mlp.linear_fc2.weight": Rows(f"{expert_layers.DENSE}{_SHARED_OUTPUT}"),
        f"{_EXPERT}pre_mlp_layernorm.weight": Rows(MLP_NORM),
        f"{_EXPERT}mlp.router.weight": Rows(_ROUTER),
        **second,
        **routed,
        f"{shared}linear_fc1.weight": Rows(f"{expert_layers.EXPERT}{_SHARED_INPUT}"),
        f"{shared}linear_fc2.weight": Rows(f"{expert_layers.EXPERT}{_SHARED_OUTPUT}"),
    }


_MLP_MODULES = (
    *expert_layers.dense_extra_states(_DENSE),
    f"{_EXPERT}pre_mlp_layernorm",
    *expert_layers.expert_extra_states(_EXPERT),
)
GRANITE4 = Family(
    name="granite4",
    shapes=_shapes,
    tables={
        MEGATRON: _table(stacked=True),
        MEGATRON_TE: _table(stacked=False),
        MEGATRON_LOCAL: llama.renamed(_table(stacked=False), llama.LOCAL_NAMES),
    },
    extra_state_modules=(
        *(module for module in llama.EXTRA_STATE_MODULES if ".mlp." not in module),
        *_MLP_MODULES,
    ),
)
GRANITE4_HYBRID = Family(
    name="granite4_hybrid",
    shapes=_shapes,
    tables={
        MEGATRON: {
            **llama.without_attention(_table(stacked=True)),
            **mamba.HYBRID_TABLE,
        }
    },
    extra_state_modules=(*mamba.HYBRID_EXTRA_STATE_MODULES, *_MLP_MODULES, "decoder.final_layernorm"),
)
