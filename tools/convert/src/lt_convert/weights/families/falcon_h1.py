"""The Falcon-H1 family: Mamba-2 and attention side by side in every layer, and Llama's MLP under other names.

megatron-core has no such layer. lt-train stores both mixers under the names of megatron-core's mixers, layer by layer, and the
norm in front of both as `input_layernorm`.
"""

from collections.abc import Mapping

from lt_convert.weights.families import bamba, llama, mamba
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER
from lt_convert.weights.mapping import MEGATRON, Family, Shape, Table
from lt_convert.weights.weight_ops import Rows
from lt_shared.models.architecture import Architecture

_MIXER = f"{MEGATRON_LAYER}mixer."


def _shapes(architecture: Architecture) -> Mapping[str, Shape]:
    mixers: dict[str, Shape] = {
        llama.ATTENTION_NORM: (architecture.hidden_size,),
        **mamba.shapes(architecture, f"{LAYER}mamba."),
        **llama.projections(architecture, f"{LAYER}self_attn."),
    }
    return bamba.decoder(architecture, mixers)


_TABLE: Table = {
    f"{MEGATRON_LAYER}input_layernorm.weight": Rows(llama.ATTENTION_NORM),
    **mamba.mixer_table(f"{LAYER}mamba.", _MIXER),
    **{name: op for name, op in llama.MEGATRON_TABLE.items() if ".self_attention." in name and ".layer_norm_" not in name},
    **bamba.COMMON_TABLE,
}
FALCON_H1 = Family(
    name="falcon_h1",
    shapes=_shapes,
    tables={MEGATRON: _TABLE},
    extra_state_modules=(*llama.EXTRA_STATE_MODULES, f"{_MIXER}in_proj", f"{_MIXER}out_proj"),
)
