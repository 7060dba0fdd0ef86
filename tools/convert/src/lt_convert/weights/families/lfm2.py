"""The LFM2 family: short convolutions in most layers, in the others Llama's attention with norms of queries and keys.

Hugging Face has the rows of B, C and x in one tensor; torch_dist stores a tensor for each, because tensor-parallel ranks divide
their channels. `lfm2_moe` has experts behind its dense layers. Megatron's legacy format and TorchTitan have no such layers.
"""

from collections.abc import Callable, Iterator, Mapping

from lt_convert.weights.families import llama
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER
from lt_convert.weights.mapping import MEGATRON, Family, Shape, Table
from lt_convert.weights.placeholders import DENSE_LAYER, EXPERT_LAYER, layer_with
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT, Alias, Experts, OutputLayer, PaddedRows, QueryGroups, RowMapping, Rows
from lt_shared.models.architecture import Architecture
from lt_shared.models.architecture.sizes import ATTENTION, SHORT_CONVOLUTION

_FINAL_NORM = "model.embedding_norm.weight"
_ATTENTION, _CONVOLUTION = (f"model.layers.{layer_with(kind)}." for kind in (ATTENTION, SHORT_CONVOLUTION))
_MEGATRON_ATTENTION, _MEGATRON_CONVOLUTION = (f"decoder.layers.{layer_with(kind)}." for kind in (ATTENTION, SHORT_CONVOLUTION))
_DENSE, _EXPERT = (f"model.layers.{kind}." for kind in (DENSE_LAYER, EXPERT_LAYER))
_MEGATRON_DENSE, _MEGATRON_EXPERT = (f"decoder.layers.{kind}." for kind in (DENSE_LAYER, EXPERT_LAYER))
_MLP_NORM = f"{LAYER}ffn_norm.weight"
# The thirds of the input projection, in the order of its rows.
_PARTS = ("B", "C", "x")
_PROJECTION = f"{_CONVOLUTION}conv.in_proj.weight"


class Third:
    """One of three parts, of equal size, of a tensor's rows."""

    combine, separate = "split", "concatenate"

    def __init__(self, name: str, number: int):
        self.name, self.number = name, number

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        rows = shape(self.name)[0] // 3
        yield RowMapping(self.name, range(self.number * rows, (self.number + 1) * rows), range(rows))


def _mlp_shapes(architecture: Architecture, layer: str, width: int) -> dict[str, Shape]:
    hidden = architecture.hidden_size
    return {f"{layer}w1.weight": (width, hidden), f"{layer}w3.weight": (width, hidden), f"{layer}w2.weight": (hidden, width)}


def _mlps(architecture: Architecture) -> dict[str, Shape]:
    if architecture.num_experts is None:
        return _mlp_shapes(architecture, f"{LAYER}feed_forward.", architecture.ffn_hidden_size)
    experts = architecture.num_experts
    bias: dict[str, Shape] = {f"{_EXPERT}feed_forward.expert_bias": (experts,)}
    return {
        **_mlp_shapes(architecture, f"{_DENSE}feed_forward.", architecture.ffn_hidden_size),
        f"{_EXPERT}feed_forward.gate.weight": (experts, architecture.hidden_size),
        **(bias if architecture.moe_router_enable_expert_bias else {}),
        **_mlp_shapes(architecture, f"{_EXPERT}feed_forward.experts.{{expert}}.", architecture.expert_size),
    }


def _shapes(architecture: Architecture) -> Mapping[str, Shape]:
    hidden, convolution = architecture.hidden_size, architecture.short_convolution
    layer: dict[str, Shape] = {
        **llama.projections(architecture, f"{_ATTENTION}self_attn.", output="out_proj"),
        f"{_ATTENTION}self_attn.q_layernorm.weight": (architecture.kv_channels,),
        f"{_ATTENTION}self_attn.k_layernorm.weight": (architecture.kv_channels,),
        f"{_CONVOLUTION}conv.conv.weight": (hidden, 1, convolution.taps if convolution else 0),
        _PROJECTION: (3 * hidden, hidden),
        f"{_CONVOLUTION}conv.out_proj.weight": (hidden, hidden),
        **_mlps(architecture),
        f"{LAYER}operator_norm.weight": (hidden,),
        _MLP_NORM: (hidden,),
    }
    decoder = llama.decoder(architecture, layer)
    return {_FINAL_NORM if name == llama.FINAL_NORM else name: shape for name, shape in decoder.items()}


def _dense_table(ours: str, layer: str) -> Table:
    return {
        f"{ours}mlp.linear_fc1.layer_norm_weight": Rows(_MLP_NORM.replace(LAYER, layer)),
        f"{ours}mlp.linear_fc1.weight": Rows(f"{layer}feed_forward.w1.weight", f"{layer}feed_forward.w3.weight"),
        f"{ours}mlp.linear_fc2.weight": Rows(f"{layer}feed_forward.w2.weight"),
    }


_ATTENTION_TABLE: Table = {
    f"{_MEGATRON_ATTENTION}self_attention.linear_qkv.layer_norm_weight": Rows(f"{_ATTENTION}operator_norm.weight"),
    f"{_MEGATRON_ATTENTION}self_attention.linear_qkv.weight": QueryGroups(
        *(f"{_ATTENTION}self_attn.{letter}_proj.weight" for letter in "qkv")
    ),
    f"{_MEGATRON_ATTENTION}self_attention.q_layernorm.weight": Rows(f"{_ATTENTION}self_attn.q_layernorm.weight"),
    f"{_MEGATRON_ATTENTION}self_attention.k_layernorm.weight": Rows(f"{_ATTENTION}self_attn.k_layernorm.weight"),
    f"{_MEGATRON_ATTENTION}self_attention.linear_proj.weight": Rows(f"{_ATTENTION}self_attn.out_proj.weight"),
}
_MIXER = f"{_MEGATRON_CONVOLUTION}self_attention."
_CONVOLUTION_TABLE: Table = {
    f"{_MIXER}in_proj.layer_norm_weight": Rows(f"{_CONVOLUTION}operator_norm.weight"),
    **{
        f"{_MIXER}in_proj.weight.{part}": Third(f"{_CONVOLUTION}conv.in_proj.weight", number)
        for number, part in enumerate(_PARTS)
    },
    f"{_MIXER}conv1d.weight": Rows(f"{_CONVOLUTION}conv.conv.weight"),
    f"{_MIXER}out_proj.weight": Rows(f"{_CONVOLUTION}conv.out_proj.weight"),
}
_ROUTED = f"{_EXPERT}feed_forward.experts.{{expert}}."
_EXPERTS_TABLE: Table = {
    **_dense_table(_MEGATRON_DENSE, _DENSE),
    f"{_MEGATRON_EXPERT}pre_mlp_layernorm.weight": Rows(_MLP_NORM.replace(LAYER, _EXPERT)),
    f"{_MEGATRON_EXPERT}mlp.linear_fc1.layer_norm_weight": Alias(Rows(_MLP_NORM.replace(LAYER, _EXPERT)), written=True),
    f"{_MEGATRON_EXPERT}mlp.router.weight": Rows(f"{_EXPERT}feed_forward.gate.weight"),
    f"{_MEGATRON_EXPERT}mlp.router.expert_bias": Rows(f"{_EXPERT}feed_forward.expert_bias"),
    f"{_MEGATRON_EXPERT}mlp.experts.experts.linear_fc1.weight": Experts(Rows(f"{_ROUTED}w1.weight", f"{_ROUTED}w3.weight")),
    f"{_MEGATRON_EXPERT}mlp.experts.experts.linear_fc2.weight": Experts(Rows(f"{_ROUTED}w2.weight")),
}


def _table(mlps: Table) -> Table:
    return {
        "embedding.word_embeddings.weight": PaddedRows(llama.EMBEDDING),
        **_ATTENTION_TABLE,
        **_CONVOLUTION_TABLE,
        **mlps,
        "decoder.final_layernorm.weight": Rows(_FINAL_NORM),
        "output_layer.weight": OutputLayer(PaddedRows(OUTPUT_WEIGHT), PaddedRows(llama.EMBEDDING)),
    }


_ATTENTION_MODULES = ("linear_qkv", "q_layernorm", "k_layernorm", "core_attention", "linear_proj")
_EXTRA_STATE_MODULES = (
    *(f"{_MEGATRON_ATTENTION}self_attention.{name}" for name in _ATTENTION_MODULES),
    *(f"{_MIXER}{name}" for name in ("in_proj", "out_proj")),
    "decoder.final_layernorm",
)
LFM2 = Family(
    name="lfm2",
    shapes=_shapes,
    tables={MEGATRON: _table(_dense_table(MEGATRON_LAYER, LAYER))},
    extra_state_modules=(*_EXTRA_STATE_MODULES, *(f"{MEGATRON_LAYER}mlp.linear_fc{number}" for number in (1, 2))),
)
LFM2_MOE = Family(
    name="lfm2_moe",
    shapes=_shapes,
    tables={MEGATRON: _table(_EXPERTS_TABLE)},
    extra_state_modules=(
        *_EXTRA_STATE_MODULES,
        *(f"{_MEGATRON_DENSE}mlp.linear_fc{number}" for number in (1, 2)),
        f"{_MEGATRON_EXPERT}pre_mlp_layernorm",
        *(f"{_MEGATRON_EXPERT}mlp.experts.experts.linear_fc{number}.{{expert}}" for number in (1, 2)),
    ),
)
