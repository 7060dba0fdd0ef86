"""ERNIE 4.5's mixtures: Llama's attention with RoPE of adjacent channels, and DeepSeek's dense and expert layers.

Files have a router's balancing biases as a matrix of one row. megatron-core has no biases of a softmax router: only torch_dist
and lt-train's models have these. A multi-token prediction layer in published files is left out, as transformers does.
"""

from collections.abc import Mapping

from lt_convert.weights.families import adjacent_pairs, expert_layers, llama
from lt_convert.weights.families.llama import MLP_NORM
from lt_convert.weights.mapping import BALANCING_BIAS, MEGATRON, Family, Shape, Table
from lt_convert.weights.placeholders import DENSE_LAYER, EXPERT_LAYER
from lt_convert.weights.weight_ops import Alias, ExpertSlice, Rows
from lt_shared.models.architecture import Architecture

_DENSE, _EXPERT = (f"decoder.layers.{layer}." for layer in (DENSE_LAYER, EXPERT_LAYER))
_BIAS = f"{expert_layers.EXPERT}mlp.moe_statics.{BALANCING_BIAS}"


def _shapes(architecture: Architecture) -> Mapping[str, Shape]:
    experts = expert_layers.expert_shapes(architecture)
    bias: dict[str, Shape] = {_BIAS: (1, architecture.num_experts or 0)}
    routed = {name: shape for name, shape in experts.items() if not name.endswith(BALANCING_BIAS)} | bias
    dense = expert_layers.dense_shapes(architecture) if architecture.moe_first_dense_layers else {}
    return llama.decoder(architecture, llama.attention(architecture) | dense | routed)


_TABLE: Table = {
    **{pattern: op for pattern, op in adjacent_pairs.TABLE.items() if ".mlp." not in pattern},
    f"{_DENSE}mlp.linear_fc1.layer_norm_weight": Rows(MLP_NORM),
    **expert_layers.dense_table(_DENSE),
    f"{_EXPERT}pre_mlp_layernorm.weight": Rows(MLP_NORM),
    f"{_EXPERT}mlp.linear_fc1.layer_norm_weight": Alias(Rows(MLP_NORM), written=True),
    **expert_layers.expert_table(_EXPERT),
    f"{_EXPERT}mlp.router.expert_bias": ExpertSlice(Rows(_BIAS)),
}

ERNIE4_5_MOE = Family(
    name="ernie4_5_moe",
    shapes=_shapes,
    tables={MEGATRON: _TABLE},
    extra_state_modules=(
        *(module for module in llama.EXTRA_STATE_MODULES if ".mlp." not in module),
        *expert_layers.dense_extra_states(_DENSE),
        f"{_EXPERT}pre_mlp_layernorm",
        *expert_layers.expert_extra_states(_EXPERT),
    ),
    other_parts=r"model\.mtp_\w+\..*",
)
