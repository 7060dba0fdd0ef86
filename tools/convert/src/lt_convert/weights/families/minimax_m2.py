"""The MiniMax-M2 family: Mixtral's names, with a balancing bias beside the router and norms of queries and keys over all heads.

megatron-core has no such norms, and TorchTitan no such models: torch_dist alone has them, as lt-train's models do.
"""

from collections.abc import Mapping

from lt_convert.weights.families import llama, mixtral, olmo, qwen3
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER
from lt_convert.weights.families.mixtral import DOWN, GATE, ROUTER, UP
from lt_convert.weights.mapping import BALANCING_BIAS, MEGATRON, Family, Shape
from lt_convert.weights.weight_ops import Rows
from lt_shared.models.architecture import Architecture

_BIAS = f"{LAYER}block_sparse_moe.{BALANCING_BIAS}"


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    attention = llama.attention(architecture) | olmo.norms_over_all_heads(architecture)
    bias: dict[str, Shape] = {_BIAS: (architecture.num_experts or 0,)}
    return llama.decoder(architecture, attention | mixtral.experts(architecture) | bias)


_ADDED = {**qwen3.MEGATRON_NORMS, f"{MEGATRON_LAYER}mlp.router.expert_bias": Rows(_BIAS)}
MINIMAX_M2 = Family(
    name="minimax_m2",
    shapes=shapes,
    tables={MEGATRON: mixtral.megatron_tables(ROUTER, GATE, UP, DOWN, _ADDED)[MEGATRON]},
    extra_state_modules=mixtral.EXTRA_STATE_MODULES,
)
