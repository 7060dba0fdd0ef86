"""The Qwen2-MoE family: Qwen2's attention, experts in every layer, a shared expert with a gate. TorchTitan has no such models."""

from collections.abc import Mapping

from lt_convert.weights.families import expert_layers, llama, mixtral, qwen2, qwen3_moe
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER
from lt_convert.weights.mapping import Family, Shape, Table
from lt_convert.weights.weight_ops import QueryGroups, Rows
from lt_shared.models.architecture import Architecture

_SHARED = f"{LAYER}mlp.shared_expert"
_SHARED_GATE, _SHARED_UP, _SHARED_DOWN = (f"{_SHARED}.{name}_proj.weight" for name in ("gate", "up", "down"))
_GATE = f"{_SHARED}_gate.weight"


def experts(architecture: Architecture) -> dict[str, Shape]:
    """The tensors of router, experts and the shared expert with its gate."""
    hidden, width = architecture.hidden_size, architecture.moe_shared_expert_intermediate_size or 0
    routed = {name: shape for name, shape in expert_layers.expert_shapes(architecture, LAYER).items() if ".shared_" not in name}
    shared: dict[str, Shape] = {
        _SHARED_GATE: (width, hidden),
        _SHARED_UP: (width, hidden),
        _SHARED_DOWN: (hidden, width),
        _GATE: (1, hidden),
    }
    return routed | shared


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    biases = qwen2.biases(architecture) if architecture.add_qkv_bias else {}
    return llama.decoder(architecture, llama.attention(architecture) | biases | experts(architecture))


SHARED_EXPERTS: Table = {
    f"{MEGATRON_LAYER}mlp.shared_experts.linear_fc1.weight": Rows(_SHARED_GATE, _SHARED_UP),
    f"{MEGATRON_LAYER}mlp.shared_experts.linear_fc2.weight": Rows(_SHARED_DOWN),
    f"{MEGATRON_LAYER}mlp.shared_experts.gate_weight": Rows(_GATE),
}
_ADDED: Table = {
    f"{MEGATRON_LAYER}self_attention.linear_qkv.bias": QueryGroups(qwen2.QUERY_BIAS, qwen2.KEY_BIAS, qwen2.VALUE_BIAS),
    **SHARED_EXPERTS,
}
QWEN2_MOE = Family(
    name="qwen2_moe",
    shapes=shapes,
    tables=mixtral.megatron_tables(qwen3_moe.ROUTER, qwen3_moe.GATE, qwen3_moe.UP, qwen3_moe.DOWN, _ADDED),
    extra_state_modules=(
        *mixtral.EXTRA_STATE_MODULES,
        *(f"{MEGATRON_LAYER}mlp.shared_experts.linear_fc{number}" for number in (1, 2)),
    ),
)
