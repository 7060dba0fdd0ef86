"""The OLMo Hybrid family: gated delta layers with a tensor for each part of the projection, and OLMo 2's attention.

The names are those that transformers writes: `feedforward_layer_norm` is the norm before the MLP of a gated delta layer, and the
norm behind attention of the others. Published files call the latter `post_attention_layernorm`, which is read, too.
"""

from collections.abc import Iterator, Mapping

from lt_convert.tensors.tensor import Tensor, assemble
from lt_convert.weights.families import gated_delta, llama
from lt_convert.weights.families.gated_delta import (
    ATTENTION_LAYER,
    DELTA_LAYER,
    MEGATRON_ATTENTION,
    MEGATRON_DELTA,
    MEGATRON_MIXER,
    MIXER,
)
from lt_convert.weights.families.llama import LAYER
from lt_convert.weights.mapping import MEGATRON, Family, Shape, Table
from lt_convert.weights.weight_ops import QueryGroups, Rows
from lt_shared.models.architecture import Architecture

_BETWEEN = f"{LAYER}feedforward_layer_norm.weight"
_AFTER_MLP = f"{ATTENTION_LAYER}post_feedforward_layernorm.weight"
_BEFORE_DELTA = f"{DELTA_LAYER}attention_layer_norm.weight"
_ATTENTION = f"{ATTENTION_LAYER}self_attn."
# transformers' names of the projections of megatron-core's parts.
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "z": "g_proj", "beta": "b_proj", "alpha": "a_proj"}
_CONVOLUTIONS = {"query": "q_conv1d", "key": "k_conv1d", "value": "v_conv1d"}
_OTHER_NAMES = {".post_attention_layernorm.": ".feedforward_layer_norm.", ".input_layernorm.": ".attention_layer_norm."}


def _shapes(architecture: Architecture) -> Mapping[str, Shape]:
    hidden, delta = architecture.hidden_size, gated_delta.delta_of(architecture)
    sizes = gated_delta.part_sizes(delta)
    attention: dict[str, Shape] = {
        **llama.projections(architecture, _ATTENTION),
        f"{_ATTENTION}q_norm.weight": (architecture.query_size,),
        f"{_ATTENTION}k_norm.weight": (architecture.kv_size,),
        _AFTER_MLP: (hidden,),
    }
    mixer: dict[str, Shape] = {
        **{f"{MIXER}{name}.weight": (sizes[part], hidden) for part, name in _PROJECTIONS.items()},
        **{f"{MIXER}{name}.weight": (sizes[part], 1, delta.linear_conv_kernel_dim) for part, name in _CONVOLUTIONS.items()},
        f"{MIXER}A_log": (sizes["alpha"],),
        f"{MIXER}dt_bias": (sizes["alpha"],),
        f"{MIXER}o_norm.weight": (delta.linear_value_head_dim,),
        f"{MIXER}o_proj.weight": (hidden, sizes["value"]),
        _BEFORE_DELTA: (hidden,),
    }
    return llama.decoder(architecture, attention | mixer | {_BETWEEN: (hidden,)} | llama.feed_forward(architecture))


def _as_published(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename norms, and divide the convolution's weights as the projections are.

    transformers 5 divides them into three equal parts, although there are more channels of values than of queries and keys.
    """
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for other, written in _OTHER_NAMES.items():
            name = name.replace(other, written)
        renamed[name] = tensor
    for layer in [name.removesuffix("q_conv1d.weight") for name in renamed if name.endswith(".linear_attn.q_conv1d.weight")]:
        convolutions = [f"{layer}{letter}_conv1d.weight" for letter in "qkv"]
        projections = [f"{layer}{letter}_proj.weight" for letter in "qkv"]
        if not all(name in renamed for name in (*convolutions, *projections)):
            continue
        rows = [renamed[name].shape[0] for name in projections]
        parts = [renamed[name] for name in convolutions]
        if [part.shape[0] for part in parts] != rows and sum(part.shape[0] for part in parts) == sum(rows):
            for name, part in zip(convolutions, _divided(parts, rows), strict=True):
                renamed[name] = part
    return renamed


def _divided(parts: list[Tensor], rows: list[int]) -> Iterator[Tensor]:
    """Divide the rows of all `parts`, one after the other, into tensors of so many `rows`."""
    start, pieces = 0, []
    for part in parts:
        count = part.shape[0]
        pieces.append(((range(start, start + count), *map(range, part.shape[1:])), part))
        start += count
    whole = assemble("conv1d.weight", (start, *parts[0].shape[1:]), pieces)
    first = 0
    for count in rows:
        yield whole.take(0, range(first, first + count))
        first += count


_OURS = f"{MEGATRON_ATTENTION}self_attention."
_TABLE: Table = {
    **{name: op for name, op in llama.without_attention(llama.MEGATRON_TABLE).items() if "layer_norm" not in name},
    f"{_OURS}linear_qkv.weight": QueryGroups(*(f"{_ATTENTION}{name}_proj.weight" for name in "qkv")),
    f"{_OURS}q_layernorm.weight": Rows(f"{_ATTENTION}q_norm.weight"),
    f"{_OURS}k_layernorm.weight": Rows(f"{_ATTENTION}k_norm.weight"),
    f"{_OURS}linear_proj.weight": Rows(f"{_ATTENTION}o_proj.weight"),
    f"{_OURS}linear_proj.post_layernorm.weight": Rows(f"{ATTENTION_LAYER}feedforward_layer_norm.weight"),
    f"{MEGATRON_ATTENTION}mlp.linear_fc2.post_layernorm.weight": Rows(_AFTER_MLP),
    f"{MEGATRON_MIXER}in_proj.layer_norm_weight": Rows(_BEFORE_DELTA),
    **{f"{MEGATRON_MIXER}in_proj.weight.{part}": Rows(f"{MIXER}{name}.weight") for part, name in _PROJECTIONS.items()},
    **{f"{MEGATRON_MIXER}conv1d.weight.{part}": Rows(f"{MIXER}{name}.weight") for part, name in _CONVOLUTIONS.items()},
    f"{MEGATRON_MIXER}dt_bias": Rows(f"{MIXER}dt_bias"),
    f"{MEGATRON_MIXER}A_log": Rows(f"{MIXER}A_log"),
    f"{MEGATRON_MIXER}gated_norm.weight": Rows(f"{MIXER}o_norm.weight"),
    f"{MEGATRON_MIXER}out_proj.weight": Rows(f"{MIXER}o_proj.weight"),
    f"{MEGATRON_DELTA}mlp.linear_fc1.layer_norm_weight": Rows(f"{DELTA_LAYER}feedforward_layer_norm.weight"),
}
OLMO_HYBRID = Family(
    name="olmo_hybrid",
    shapes=_shapes,
    tables={MEGATRON: _TABLE},
    extra_state_modules=gated_delta.extra_state_modules(llama.EXTRA_STATE_MODULES),
    hf_form=_as_published,
)
