"""The feed-forward part of a layer in models that begin with dense layers, then have routed and shared experts.

DeepSeek and its relatives share it, with any attention. Tables are made for a layer by its prefix in the format and its prefix in
canonical names, so that decoder layers and multi-token prediction layers have the same tables. A router's balancing bias
is a tensor of its own in all formats; a model without one has no rows for it.
"""

from lt_convert.weights.families import llama
from lt_convert.weights.mapping import BALANCING_BIAS, Shape, Table
from lt_convert.weights.placeholders import DENSE_LAYER, EXPERT_LAYER, MTP_LAYER
from lt_convert.weights.weight_ops import Alias, Experts, Rows
from lt_shared.models.architecture import Architecture

DENSE, EXPERT, PREDICTION = (f"model.layers.{layer}." for layer in (DENSE_LAYER, EXPERT_LAYER, MTP_LAYER))
# Parts of names in TorchTitan up to 0.2, which had no multi-token prediction.
NAMES_OF_2025 = {
    **llama.NAMES_OF_2025,
    "moe.routed_experts.inner_experts.": "moe.experts.",
    "_EFD": "",
    "_EDF": "",
    "_bias_E": "_bias",
}
BIAS = f"mlp.gate.{BALANCING_BIAS}"


def _gated(layer: str, part: str) -> tuple[str, str, str]:
    """The canonical names of a gate, an up and a down projection."""
    gate, up, down = (f"{layer}mlp.{part}{name}_proj.weight" for name in ("gate", "up", "down"))
    return gate, up, down


def _gated_shapes(architecture: Architecture, layer: str, part: str, width: int) -> dict[str, Shape]:
    gate, up, down = _gated(layer, part)
    hidden = architecture.hidden_size
    return {gate: (width, hidden), up: (width, hidden), down: (hidden, width)}


def dense_shapes(architecture: Architecture, layer: str = DENSE) -> dict[str, Shape]:
    return _gated_shapes(architecture, layer, "", architecture.ffn_hidden_size)


def expert_shapes(architecture: Architecture, layer: str = EXPERT) -> dict[str, Shape]:
    experts, shared = architecture.num_experts or 0, architecture.moe_shared_expert_intermediate_size
    return {
        f"{layer}mlp.gate.weight": (experts, architecture.hidden_size),
        **({f"{layer}{BIAS}": (experts,)} if architecture.moe_router_enable_expert_bias else {}),
        **_gated_shapes(architecture, layer, "experts.{expert}.", architecture.expert_size),
        **(_gated_shapes(architecture, layer, "shared_experts.", shared) if shared else {}),
    }


def dense_table(ours: str, layer: str = DENSE) -> Table:
    gate, up, down = _gated(layer, "")
    return {f"{ours}mlp.linear_fc1.weight": Rows(gate, up), f"{ours}mlp.linear_fc2.weight": Rows(down)}


def expert_table(ours: str, layer: str = EXPERT, stacked: bool = True) -> Table:
    """Megatron's experts: `stacked` as torch_dist stores them, otherwise as in the legacy file of a rank."""
    gate, up, down = _gated(layer, "experts.{expert}.")
    shared_gate, shared_up, shared_down = _gated(layer, "shared_experts.")
    experts = f"{ours}mlp.experts."
    routed: Table = {
        f"{experts}experts.linear_fc1.weight": Experts(Rows(gate, up)),
        f"{experts}experts.linear_fc2.weight": Experts(Rows(down)),
    }
    if not stacked:
        routed = {
            f"{experts}local_experts.{{expert}}.linear_fc1.weight": Rows(gate, up),
            f"{experts}local_experts.{{expert}}.linear_fc2.weight": Rows(down),
            f"{experts}linear_fc1.weight{{expert}}": Alias(Rows(gate, up)),
            f"{experts}linear_fc2.weight{{expert}}": Alias(Rows(down)),
        }
    return {
        f"{ours}mlp.router.weight": Rows(f"{layer}mlp.gate.weight"),
        f"{ours}mlp.router.expert_bias": Rows(f"{layer}{BIAS}"),
        **routed,
        f"{ours}mlp.shared_experts.linear_fc1.weight": Rows(shared_gate, shared_up),
        f"{ours}mlp.shared_experts.linear_fc2.weight": Rows(shared_down),
    }


def torchtitan_dense_table(ours: str, layer: str = DENSE) -> Table:
    gate, up, down = _gated(layer, "")
    return {f"{ours}feed_forward.w{digit}.weight": Rows(name) for digit, name in zip("132", (gate, up, down), strict=True)}


def torchtitan_expert_table(ours: str, layer: str = EXPERT) -> Table:
    """The balancing bias lies beside the router, and not in it."""
    gate, up, down = _gated(layer, "experts.{expert}.")
    shared = zip("132", _gated(layer, "shared_experts."), strict=True)
    return {
        f"{ours}moe.router.gate.weight": Rows(f"{layer}mlp.gate.weight"),
        f"{ours}moe.expert_bias_E": Rows(f"{layer}{BIAS}"),
        f"{ours}moe.routed_experts.inner_experts.w1_EFD": Experts(Rows(gate)),
        f"{ours}moe.routed_experts.inner_experts.w2_EDF": Experts(Rows(down)),
        f"{ours}moe.routed_experts.inner_experts.w3_EFD": Experts(Rows(up)),
        **{f"{ours}moe.shared_experts.w{digit}.weight": Rows(name) for digit, name in shared},
    }


def dense_extra_states(dense: str) -> tuple[str, ...]:
    """The modules with an `_extra_state` of a dense layer with this prefix in Megatron."""
    return (f"{dense}mlp.linear_fc1", f"{dense}mlp.linear_fc2")


def expert_extra_states(experts: str) -> tuple[str, ...]:
    """The modules with an `_extra_state` of a layer with experts with this prefix in Megatron."""
    return (
        *(f"{experts}mlp.experts.experts.linear_fc{number}.{{expert}}" for number in (1, 2)),
        *(f"{experts}mlp.shared_experts.linear_fc{number}" for number in (1, 2)),
    )
