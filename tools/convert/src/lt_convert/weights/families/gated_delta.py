"""The tensors of gated delta layers, and of attention with an output gate, as Qwen3-Next has both.

torch_dist stores queries, keys, values, output gates (z), betas and alphas of the input projection as tensors of their own,
because tensor-parallel ranks divide the heads of each; the convolution's weights likewise. The names are megatron-core's, but for
the norm of the output, `gated_norm`: megatron-core adds 1 to the weight of its `out_norm` if it does so in all norms
(`apply_layernorm_1p`), and no published model does.
Megatron's legacy format and TorchTitan have no such layers.
"""

from collections.abc import Callable, Iterable, Iterator

from lt_convert.weights.families.llama import ATTENTION_NORM, MLP_NORM, projections
from lt_convert.weights.mapping import Shape, Table
from lt_convert.weights.placeholders import layer_with
from lt_convert.weights.weight_ops import RowMapping, Rows
from lt_shared.models.architecture import Architecture, GatedDelta
from lt_shared.models.architecture.sizes import ATTENTION, GATED_DELTA

ATTENTION_LAYER, DELTA_LAYER = (f"model.layers.{layer_with(kind)}." for kind in (ATTENTION, GATED_DELTA))
MEGATRON_ATTENTION, MEGATRON_DELTA = (f"decoder.layers.{layer_with(kind)}." for kind in (ATTENTION, GATED_DELTA))
MIXER = f"{DELTA_LAYER}linear_attn."
MEGATRON_MIXER = f"{MEGATRON_DELTA}self_attention."
# The parts of a key head in transformers' projections, and of the convolution, under megatron-core's names.
PROJECTED, SCALARS, CONVOLVED = ("query", "key", "value", "z"), ("beta", "alpha"), ("query", "key", "value")


def delta_of(architecture: Architecture) -> GatedDelta:
    assert architecture.gated_delta is not None
    return architecture.gated_delta


def part_sizes(delta: GatedDelta) -> dict[str, int]:
    """The rows of each part of the input projection, summed over the heads."""
    keys, values, heads = delta.key_size, delta.value_size, delta.linear_num_value_heads
    return {"query": keys, "key": keys, "value": values, "z": values, "beta": heads, "alpha": heads}


class HeadPart:
    """One of `parts` of every key head, from a tensor whose rows are grouped by key head."""

    combine, separate = "take a part of every head", "group by head"

    def __init__(self, name: str, parts: tuple[str, ...], part: str):
        self.name, self.parts, self.part = name, parts, part

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        delta = delta_of(architecture)
        heads = delta.linear_num_key_heads
        sizes = {part: size // heads for part, size in part_sizes(delta).items() if part in self.parts}
        before, size = self.parts[: self.parts.index(self.part)], sizes[self.part]
        for head in range(heads):
            first = head * sum(sizes.values()) + sum(sizes[part] for part in before)
            yield RowMapping(self.name, range(first, first + size), range(head * size, (head + 1) * size))


class Part:
    """One of `parts` that follow each other in a tensor, each with the rows of all heads."""

    combine, separate = "split", "concatenate"

    def __init__(self, name: str, parts: tuple[str, ...], part: str):
        self.name, self.parts, self.part = name, parts, part

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        sizes = part_sizes(delta_of(architecture))
        first = sum(sizes[part] for part in self.parts[: self.parts.index(self.part)])
        yield RowMapping(self.name, range(first, first + sizes[self.part]), range(sizes[self.part]))


class GatedQueryGroups:
    """Megatron's linear_qkv with output gates: for each query group its query heads, its gates, its key head, its value head.

    The canonical query tensor has the rows of a head's queries, then the rows of its gates.
    """

    combine, separate = "interleave query groups with gates", "separate query groups and gates"

    def __init__(self, query: str, key: str, value: str):
        self.query, self.key, self.value = query, key, value

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        groups, channels = architecture.num_query_groups, architecture.kv_channels
        heads = architecture.num_attention_heads // groups
        start = 0
        for group in range(groups):
            firsts = [2 * channels * head for head in range(group * heads, (group + 1) * heads)]
            rows = [(self.query, first) for first in firsts]
            rows += [(self.query, first + channels) for first in firsts]
            rows += [(self.key, group * channels), (self.value, group * channels)]
            for name, first in rows:
                yield RowMapping(name, range(first, first + channels), range(start, start + channels))
                start += channels


def gated_attention(architecture: Architecture) -> dict[str, Shape]:
    """The tensors of an attention layer with an output gate, and with norms of queries and keys."""
    layer = f"{ATTENTION_LAYER}self_attn."
    return {
        **projections(architecture, layer),
        f"{layer}q_proj.weight": (2 * architecture.query_size, architecture.hidden_size),
        f"{layer}q_norm.weight": (architecture.kv_channels,),
        f"{layer}k_norm.weight": (architecture.kv_channels,),
    }


def delta_shapes(architecture: Architecture) -> dict[str, Shape]:
    """The tensors of a gated delta layer but for its input projections, which differ by family."""
    delta = delta_of(architecture)
    return {
        f"{MIXER}dt_bias": (delta.linear_num_value_heads,),
        f"{MIXER}A_log": (delta.linear_num_value_heads,),
        f"{MIXER}conv1d.weight": (delta.convolved_size, 1, delta.linear_conv_kernel_dim),
        f"{MIXER}norm.weight": (delta.linear_value_head_dim,),
        f"{MIXER}out_proj.weight": (architecture.hidden_size, delta.value_size),
    }


def decoder_shapes(architecture: Architecture, projections: dict[str, Shape]) -> dict[str, Shape]:
    """The tensors of Qwen's layers but for the feed-forward layer: both mixers, with `projections` in gated delta, and norms."""
    norms: dict[str, Shape] = dict.fromkeys((ATTENTION_NORM, MLP_NORM), (architecture.hidden_size,))
    return delta_shapes(architecture) | projections | gated_attention(architecture) | norms


_ATTENTION = f"{ATTENTION_LAYER}self_attn."
_MEGATRON_ATTENTION = f"{MEGATRON_ATTENTION}self_attention."
MEGATRON_TABLE: Table = {
    f"{_MEGATRON_ATTENTION}linear_qkv.layer_norm_weight": Rows(f"{ATTENTION_LAYER}input_layernorm.weight"),
    f"{_MEGATRON_ATTENTION}linear_qkv.weight": GatedQueryGroups(*(f"{_ATTENTION}{name}_proj.weight" for name in "qkv")),
    f"{_MEGATRON_ATTENTION}q_layernorm.weight": Rows(f"{_ATTENTION}q_norm.weight"),
    f"{_MEGATRON_ATTENTION}k_layernorm.weight": Rows(f"{_ATTENTION}k_norm.weight"),
    f"{_MEGATRON_ATTENTION}linear_proj.weight": Rows(f"{_ATTENTION}o_proj.weight"),
    f"{MEGATRON_MIXER}in_proj.layer_norm_weight": Rows(f"{DELTA_LAYER}input_layernorm.weight"),
    f"{MEGATRON_MIXER}dt_bias": Rows(f"{MIXER}dt_bias"),
    f"{MEGATRON_MIXER}A_log": Rows(f"{MIXER}A_log"),
    **{f"{MEGATRON_MIXER}conv1d.weight.{part}": Part(f"{MIXER}conv1d.weight", CONVOLVED, part) for part in CONVOLVED},
    f"{MEGATRON_MIXER}gated_norm.weight": Rows(f"{MIXER}norm.weight"),
    f"{MEGATRON_MIXER}out_proj.weight": Rows(f"{MIXER}out_proj.weight"),
}
_EXTRA_STATE_MODULES = (
    *(f"{_MEGATRON_ATTENTION}{name}" for name in ("linear_qkv", "q_layernorm", "k_layernorm", "core_attention", "linear_proj")),
    *(f"{MEGATRON_MIXER}{name}" for name in ("in_proj", "out_proj")),
)


def extra_state_modules(decoder_modules: Iterable[str]) -> tuple[str, ...]:
    """Both kinds of mixers' modules that have an extra state, and the modules of `decoder_modules` outside attention."""
    return (*(module for module in decoder_modules if ".self_attention." not in module), *_EXTRA_STATE_MODULES)
