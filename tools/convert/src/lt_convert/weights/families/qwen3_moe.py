"""The family of Qwen3's mixtures of experts: Qwen3's attention, Mixtral's experts under other names.

TorchTitan stacks a layer's gates, ups and downs of all experts in a tensor each.
"""

from collections.abc import Mapping

from lt_convert.weights.families import llama, mixtral, qwen3
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER, TORCHTITAN_LAYER
from lt_convert.weights.mapping import Family, Shape, Table
from lt_convert.weights.weight_ops import Experts, Rows
from lt_shared.architecture import Architecture

ROUTER = f"{LAYER}mlp.gate.weight"
GATE, UP, DOWN = (f"{LAYER}mlp.experts.{{expert}}.{name}_proj.weight" for name in ("gate", "up", "down"))


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    hidden, ffn = architecture.hidden_size, architecture.expert_size
    experts: dict[str, Shape] = {
        ROUTER: (architecture.num_experts or 0, hidden),
        GATE: (ffn, hidden),
        UP: (ffn, hidden),
        DOWN: (hidden, ffn),
    }
    return llama.decoder(architecture, llama.attention(architecture) | qwen3.norms(architecture) | experts)


TORCHTITAN_TABLE: Table = {
    **{pattern: op for pattern, op in qwen3.TORCHTITAN_TABLE.items() if ".feed_forward." not in pattern},
    f"{TORCHTITAN_LAYER}moe.router.gate.weight": Rows(ROUTER),
    f"{TORCHTITAN_LAYER}moe.routed_experts.inner_experts.w1_EFD": Experts(Rows(GATE)),
    f"{TORCHTITAN_LAYER}moe.routed_experts.inner_experts.w2_EDF": Experts(Rows(DOWN)),
    f"{TORCHTITAN_LAYER}moe.routed_experts.inner_experts.w3_EFD": Experts(Rows(UP)),
}
# TorchTitan up to 0.2.
NAMES_OF_2025 = {**llama.NAMES_OF_2025, "moe.routed_experts.inner_experts.": "moe.experts.", "_EFD": "", "_EDF": ""}

QWEN3_MOE = Family(
    name="qwen3_moe",
    shapes=shapes,
    tables=mixtral.megatron_tables(ROUTER, GATE, UP, DOWN, qwen3.MEGATRON_NORMS)
    | llama.torchtitan_tables(TORCHTITAN_TABLE, NAMES_OF_2025),
    extra_state_modules=(
        *mixtral.EXTRA_STATE_MODULES,
        f"{MEGATRON_LAYER}self_attention.q_layernorm",
        f"{MEGATRON_LAYER}self_attention.k_layernorm",
    ),
)
