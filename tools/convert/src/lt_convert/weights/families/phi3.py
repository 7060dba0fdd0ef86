"""The Phi-3 family, Phi-3 to Phi-4: Llama whose Hugging Face files fuse queries, keys and values, and gate and up projection.

Megatron fuses them, too: the gates before the ups alike, queries, keys and values by query groups. TorchTitan has no such models.
"""

from collections.abc import Mapping

from lt_convert.weights.families import llama
from lt_convert.weights.families.llama import DOWN, LAYER, MEGATRON_LAYER, PROJECTION
from lt_convert.weights.mapping import Family, Shape, Table
from lt_convert.weights.weight_ops import FusedQueryGroups, Rows
from lt_shared.models.architecture import Architecture

QKV, GATE_UP = f"{LAYER}self_attn.qkv_proj.weight", f"{LAYER}mlp.gate_up_proj.weight"


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    hidden, ffn = architecture.hidden_size, architecture.ffn_hidden_size
    layer: dict[str, Shape] = {
        llama.ATTENTION_NORM: (hidden,),
        QKV: (architecture.query_size + 2 * architecture.kv_size, hidden),
        PROJECTION: (hidden, architecture.query_size),
        llama.MLP_NORM: (hidden,),
        GATE_UP: (2 * ffn, hidden),
        DOWN: (hidden, ffn),
    }
    return llama.decoder(architecture, layer)


MEGATRON_TABLE: Table = {
    **llama.MEGATRON_TABLE,
    f"{MEGATRON_LAYER}self_attention.linear_qkv.weight": FusedQueryGroups(QKV),
    f"{MEGATRON_LAYER}mlp.linear_fc1.weight": Rows(GATE_UP),
}

PHI3 = Family(
    name="phi3",
    shapes=shapes,
    tables=llama.megatron_tables(MEGATRON_TABLE),
    extra_state_modules=llama.EXTRA_STATE_MODULES,
)
