"""The Hunyuan families: Qwen3's tensors, with other names of the norms of queries and keys, which stand behind the rotation."""

from collections.abc import Mapping

from lt_convert.weights.families import llama, mixtral
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER
from lt_convert.weights.mapping import Family, Shape, Table
from lt_convert.weights.weight_ops import Rows
from lt_shared.models.architecture import Architecture

_QUERY_NORM, _KEY_NORM = (f"{LAYER}self_attn.{name}_layernorm.weight" for name in ("query", "key"))
NORMS: Table = {
    f"{MEGATRON_LAYER}self_attention.q_layernorm.weight": Rows(_QUERY_NORM),
    f"{MEGATRON_LAYER}self_attention.k_layernorm.weight": Rows(_KEY_NORM),
}


def attention(architecture: Architecture) -> dict[str, Shape]:
    norms: dict[str, Shape] = dict.fromkeys((_QUERY_NORM, _KEY_NORM), (architecture.kv_channels,))
    return llama.attention(architecture) | norms


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    return llama.decoder(architecture, attention(architecture) | llama.feed_forward(architecture))


_ROUTER = f"{LAYER}mlp.gate.wg.weight"
_GATE, _UP, _DOWN = (f"{LAYER}mlp.experts.{{expert}}.{name}_proj.weight" for name in ("gate", "up", "down"))
_SHARED_GATE, _SHARED_UP, _SHARED_DOWN = (f"{LAYER}mlp.shared_mlp.{name}_proj.weight" for name in ("gate", "up", "down"))


def _moe_shapes(architecture: Architecture) -> Mapping[str, Shape]:
    hidden, width = architecture.hidden_size, architecture.expert_size
    experts: dict[str, Shape] = {
        _ROUTER: (architecture.num_experts or 0, hidden),
        **dict.fromkeys((_GATE, _UP, _SHARED_GATE, _SHARED_UP), (width, hidden)),
        **dict.fromkeys((_DOWN, _SHARED_DOWN), (hidden, width)),
    }
    return llama.decoder(architecture, attention(architecture) | experts)


_SHARED: Table = {
    f"{MEGATRON_LAYER}mlp.shared_experts.linear_fc1.weight": Rows(_SHARED_GATE, _SHARED_UP),
    f"{MEGATRON_LAYER}mlp.shared_experts.linear_fc2.weight": Rows(_SHARED_DOWN),
}
HUNYUAN_V1_MOE = Family(
    name="hunyuan_v1_moe",
    shapes=_moe_shapes,
    tables=mixtral.megatron_tables(_ROUTER, _GATE, _UP, _DOWN, {**NORMS, **_SHARED}),
    extra_state_modules=(
        *mixtral.EXTRA_STATE_MODULES,
        *(f"{MEGATRON_LAYER}mlp.shared_experts.linear_fc{number}" for number in (1, 2)),
    ),
)
HUNYUAN_V1_DENSE = Family(
    name="hunyuan_v1_dense",
    shapes=shapes,
    tables=llama.megatron_tables({**llama.MEGATRON_TABLE, **NORMS}),
    extra_state_modules=llama.EXTRA_STATE_MODULES,
)
