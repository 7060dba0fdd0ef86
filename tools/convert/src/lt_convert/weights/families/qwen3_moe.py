"""The family of Qwen3's mixtures of experts: Qwen3's attention, Mixtral's experts under other names.

TorchTitan stacks the experts' gates, ups and downs of a layer in three tensors.
"""

from collections.abc import Mapping

from lt_convert.weights.families import expert_layers, llama, mixtral, qwen3
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER, TORCHTITAN_LAYER
from lt_convert.weights.mapping import Family, Shape, Table
from lt_shared.models.architecture import Architecture

ROUTER = f"{LAYER}mlp.gate.weight"
GATE, UP, DOWN = (f"{LAYER}mlp.experts.{{expert}}.{name}_proj.weight" for name in ("gate", "up", "down"))


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    layer = llama.attention(architecture) | qwen3.norms(architecture) | expert_layers.expert_shapes(architecture, LAYER)
    return llama.decoder(architecture, layer)


TORCHTITAN_TABLE: Table = {
    **{pattern: op for pattern, op in qwen3.TORCHTITAN_TABLE.items() if ".feed_forward." not in pattern},
    **expert_layers.torchtitan_expert_table(TORCHTITAN_LAYER, LAYER),
}

QWEN3_MOE = Family(
    name="qwen3_moe",
    shapes=shapes,
    tables=mixtral.megatron_tables(ROUTER, GATE, UP, DOWN, qwen3.MEGATRON_NORMS)
    | llama.torchtitan_tables(TORCHTITAN_TABLE, expert_layers.NAMES_OF_2025),
    extra_state_modules=(
        *mixtral.EXTRA_STATE_MODULES,
        f"{MEGATRON_LAYER}self_attention.q_layernorm",
        f"{MEGATRON_LAYER}self_attention.k_layernorm",
    ),
)
