"""The Qwen3-Next family: gated delta and gated attention, experts in every layer, a shared expert with a gate.

The published files have layers of multi-token prediction, which transformers does not read: they are left out.
"""

from collections.abc import Mapping

from lt_convert.weights.families import gated_delta, llama, mixtral, qwen2_moe, qwen3_moe
from lt_convert.weights.families.gated_delta import MEGATRON_MIXER, MIXER, PROJECTED, SCALARS, HeadPart
from lt_convert.weights.mapping import MEGATRON, Family, Shape, Table
from lt_shared.models.architecture import Architecture

_PROJECTION, _SCALARS = (f"{MIXER}in_proj_{name}.weight" for name in ("qkvz", "ba"))


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    hidden, delta = architecture.hidden_size, gated_delta.delta_of(architecture)
    projections: dict[str, Shape] = {
        _PROJECTION: (2 * (delta.key_size + delta.value_size), hidden),
        _SCALARS: (2 * delta.linear_num_value_heads, hidden),
    }
    layers = gated_delta.decoder_shapes(architecture, projections)
    return llama.decoder(architecture, layers | qwen2_moe.experts(architecture))


EXPERTS: Table = llama.without_attention(
    mixtral.megatron_tables(qwen3_moe.ROUTER, qwen3_moe.GATE, qwen3_moe.UP, qwen3_moe.DOWN, qwen2_moe.SHARED_EXPERTS)[MEGATRON]
)
QWEN3_NEXT = Family(
    name="qwen3_next",
    shapes=shapes,
    tables={
        MEGATRON: {
            **EXPERTS,
            **gated_delta.MEGATRON_TABLE,
            **{f"{MEGATRON_MIXER}in_proj.weight.{part}": HeadPart(_PROJECTION, PROJECTED, part) for part in PROJECTED},
            **{f"{MEGATRON_MIXER}in_proj.weight.{part}": HeadPart(_SCALARS, SCALARS, part) for part in SCALARS},
        }
    },
    extra_state_modules=gated_delta.extra_state_modules(qwen2_moe.QWEN2_MOE.extra_state_modules),
    other_parts=r"mtp\..*",
)
