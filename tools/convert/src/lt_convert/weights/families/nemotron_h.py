"""The Nemotron-H family: each layer is a Mamba-2 mixer, attention, an MLP or experts alone, with one norm.

The names begin with `backbone`, as in published files and as transformers writes them. Layers of multi-token prediction, which
transformers does not read, are left out.
"""

from collections.abc import Mapping

from lt_convert.weights.families import llama, mamba
from lt_convert.weights.mapping import BALANCING_BIAS, MEGATRON, Family, Shape, Table
from lt_convert.weights.placeholders import DENSE_LAYER, EXPERT_LAYER, layer_with
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT, Alias, Experts, OutputLayer, PaddedRows, QueryGroups, Rows
from lt_shared.models.architecture import Architecture
from lt_shared.models.architecture.sizes import ATTENTION, MAMBA

_EMBEDDING, _FINAL_NORM = "backbone.embeddings.weight", "backbone.norm_f.weight"
_PLACEHOLDERS = (layer_with(MAMBA), layer_with(ATTENTION), DENSE_LAYER, EXPERT_LAYER)
_MAMBA, _ATTENTION, _DENSE, _EXPERT = (f"backbone.layers.{placeholder}." for placeholder in _PLACEHOLDERS)
_, _MEGATRON_ATTENTION, _MEGATRON_DENSE, _MEGATRON_EXPERT = (f"decoder.layers.{placeholder}." for placeholder in _PLACEHOLDERS)
_EXPERTS, _SHARED = f"{_EXPERT}mixer.experts.{{expert}}.", f"{_EXPERT}mixer.shared_experts."
_BIAS = f"{_EXPERT}mixer.gate.{BALANCING_BIAS}"


def _mlp(architecture: Architecture, layer: str, width: int) -> dict[str, Shape]:
    hidden = architecture.hidden_size
    return {f"{layer}up_proj.weight": (width, hidden), f"{layer}down_proj.weight": (hidden, width)}


def _mlps(architecture: Architecture) -> dict[str, Shape]:
    norm: Shape = (architecture.hidden_size,)
    if architecture.num_experts is None:
        return {**_mlp(architecture, f"{_DENSE}mixer.", architecture.ffn_hidden_size), f"{_DENSE}norm.weight": norm}
    return {
        f"{_EXPERT}mixer.gate.weight": (architecture.num_experts, architecture.hidden_size),
        _BIAS: (architecture.num_experts,),
        **_mlp(architecture, _EXPERTS, architecture.expert_size),
        **_mlp(architecture, _SHARED, architecture.moe_shared_expert_intermediate_size or 0),
        f"{_EXPERT}norm.weight": norm,
    }


def _shapes(architecture: Architecture) -> Mapping[str, Shape]:
    hidden = architecture.hidden_size
    vocabulary = (architecture.vocab_size, hidden)
    output: dict[str, Shape] = {} if architecture.tie_embeddings else {OUTPUT_WEIGHT: vocabulary}
    return {
        _EMBEDDING: vocabulary,
        **mamba.shapes(architecture, f"{_MAMBA}mixer."),
        f"{_MAMBA}norm.weight": (hidden,),
        **llama.projections(architecture, f"{_ATTENTION}mixer."),
        f"{_ATTENTION}norm.weight": (hidden,),
        **_mlps(architecture),
        _FINAL_NORM: (hidden,),
        **output,
    }


_TABLE: Table = {
    "embedding.word_embeddings.weight": PaddedRows(_EMBEDDING),
    **mamba.table(f"{_MAMBA}mixer.", f"{_MAMBA}norm.weight"),
    f"{_MEGATRON_ATTENTION}self_attention.linear_qkv.layer_norm_weight": Rows(f"{_ATTENTION}norm.weight"),
    f"{_MEGATRON_ATTENTION}self_attention.linear_qkv.weight": QueryGroups(
        *(f"{_ATTENTION}mixer.{letter}_proj.weight" for letter in "qkv")
    ),
    f"{_MEGATRON_ATTENTION}self_attention.linear_proj.weight": Rows(f"{_ATTENTION}mixer.o_proj.weight"),
    f"{_MEGATRON_DENSE}mlp.linear_fc1.layer_norm_weight": Rows(f"{_DENSE}norm.weight"),
    f"{_MEGATRON_DENSE}mlp.linear_fc1.weight": Rows(f"{_DENSE}mixer.up_proj.weight"),
    f"{_MEGATRON_DENSE}mlp.linear_fc2.weight": Rows(f"{_DENSE}mixer.down_proj.weight"),
    f"{_MEGATRON_EXPERT}pre_mlp_layernorm.weight": Rows(f"{_EXPERT}norm.weight"),
    f"{_MEGATRON_EXPERT}mlp.linear_fc1.layer_norm_weight": Alias(Rows(f"{_EXPERT}norm.weight"), written=True),
    f"{_MEGATRON_EXPERT}mlp.router.weight": Rows(f"{_EXPERT}mixer.gate.weight"),
    f"{_MEGATRON_EXPERT}mlp.router.expert_bias": Rows(_BIAS),
    f"{_MEGATRON_EXPERT}mlp.experts.experts.linear_fc1.weight": Experts(Rows(f"{_EXPERTS}up_proj.weight")),
    f"{_MEGATRON_EXPERT}mlp.experts.experts.linear_fc2.weight": Experts(Rows(f"{_EXPERTS}down_proj.weight")),
    f"{_MEGATRON_EXPERT}mlp.shared_experts.linear_fc1.weight": Rows(f"{_SHARED}up_proj.weight"),
    f"{_MEGATRON_EXPERT}mlp.shared_experts.linear_fc2.weight": Rows(f"{_SHARED}down_proj.weight"),
    "decoder.final_layernorm.weight": Rows(_FINAL_NORM),
    "output_layer.weight": OutputLayer(PaddedRows(OUTPUT_WEIGHT), PaddedRows(_EMBEDDING)),
}
NEMOTRON_H = Family(
    name="nemotron_h",
    shapes=_shapes,
    tables={MEGATRON: _TABLE},
    extra_state_modules=(
        *mamba.EXTRA_STATE_MODULES,
        *(f"{_MEGATRON_ATTENTION}self_attention.{name}" for name in ("linear_qkv", "core_attention", "linear_proj")),
        *(f"{_MEGATRON_DENSE}mlp.linear_fc{number}" for number in (1, 2)),
        f"{_MEGATRON_EXPERT}pre_mlp_layernorm",
        *(f"{_MEGATRON_EXPERT}mlp.experts.experts.linear_fc{number}.{{expert}}" for number in (1, 2)),
        *(f"{_MEGATRON_EXPERT}mlp.shared_experts.linear_fc{number}" for number in (1, 2)),
        "decoder.final_layernorm",
    ),
    embedding=_EMBEDDING,
    base_prefix="backbone.",
    other_parts=r"mtp\..*",
)
