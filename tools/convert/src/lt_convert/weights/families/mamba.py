"""The tensors of Mamba-2 layers, under the names of megatron-core's MambaMixer.

torch_dist has a tensor for each part of the input projection: gates (z), values (x), inputs (B), outputs (C) and time steps (dt),
because tensor-parallel ranks divide its heads; likewise for the convolution's weights and biases. Megatron's legacy
format and TorchTitan have no such layers.
"""

from collections.abc import Callable, Iterator

from lt_convert.weights.families.llama import ATTENTION_NORM, projections
from lt_convert.weights.mapping import Shape, Table
from lt_convert.weights.placeholders import layer_with
from lt_convert.weights.weight_ops import QueryGroups, RowMapping, Rows
from lt_shared.models.architecture import Architecture, Mamba
from lt_shared.models.architecture.sizes import ATTENTION, MAMBA

ATTENTION_LAYER, MAMBA_LAYER = (f"model.layers.{layer_with(kind)}." for kind in (ATTENTION, MAMBA))
_MEGATRON_ATTENTION = f"decoder.layers.{layer_with(ATTENTION)}.self_attention."
MEGATRON_MIXER = f"decoder.layers.{layer_with(MAMBA)}.mixer."
_PROJECTED, _CONVOLVED = ("z", "x", "B", "C", "dt"), ("x", "B", "C")
EXTRA_STATE_MODULES = (f"{MEGATRON_MIXER}in_proj", f"{MEGATRON_MIXER}out_proj")
# Both mixers of a model that has Mamba in place of some layers' attention.
HYBRID_EXTRA_STATE_MODULES = (
    *EXTRA_STATE_MODULES,
    *(f"{_MEGATRON_ATTENTION}{name}" for name in ("linear_qkv", "core_attention", "linear_proj")),
)


def mamba_of(architecture: Architecture) -> Mamba:
    assert architecture.mamba is not None
    return architecture.mamba


class Part:
    """One of `parts` that follow each other in the rows of a tensor."""

    combine, separate = "split", "concatenate"

    def __init__(self, name: str, parts: tuple[str, ...], part: str):
        self.name, self.parts, self.part = name, parts, part

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        if not shape(self.name)[0]:
            yield RowMapping(self.name, range(0), range(0))
            return
        sizes = mamba_of(architecture).part_sizes
        first = sum(sizes[part] for part in self.parts[: self.parts.index(self.part)])
        yield RowMapping(self.name, range(first, first + sizes[self.part]), range(sizes[self.part]))


def shapes(architecture: Architecture, layer: str) -> dict[str, Shape]:
    """The tensors of a mixer with the canonical prefix `layer`."""
    mamba = mamba_of(architecture)
    heads: Shape = (mamba.mamba_num_heads,)
    bias: dict[str, Shape] = {f"{layer}conv1d.bias": (mamba.convolved_size,)} if mamba.convolution_bias else {}
    return {
        f"{layer}A_log": heads,
        f"{layer}D": heads,
        f"{layer}dt_bias": heads,
        f"{layer}conv1d.weight": (mamba.convolved_size, 1, mamba.taps),
        **bias,
        f"{layer}in_proj.weight": (mamba.projected_size, architecture.hidden_size),
        **({f"{layer}norm.weight": (mamba.inner_size,)} if mamba.has_norm else {}),
        f"{layer}out_proj.weight": (architecture.hidden_size, mamba.inner_size),
    }


def table(layer: str, norm: str) -> Table:
    """Megatron's rows for a mixer with the canonical prefix `layer`, and for the norm before the mixer."""
    return {f"{MEGATRON_MIXER}in_proj.layer_norm_weight": Rows(norm), **mixer_table(layer, MEGATRON_MIXER)}


def mixer_table(layer: str, mixer: str) -> Table:
    """Megatron's rows for a mixer with the canonical prefix `layer`, under names that begin with `mixer`."""
    convolutions = [f"conv1d.{kind}" for kind in ("weight", "bias")]
    return {
        **{f"{mixer}{name}": Rows(f"{layer}{name}") for name in ("A_log", "D", "dt_bias", "norm.weight")},
        **{f"{mixer}in_proj.weight.{part}": Part(f"{layer}in_proj.weight", _PROJECTED, part) for part in _PROJECTED},
        **{f"{mixer}{name}.{part}": Part(f"{layer}{name}", _CONVOLVED, part) for name in convolutions for part in _CONVOLVED},
        f"{mixer}out_proj.weight": Rows(f"{layer}out_proj.weight"),
    }


def hybrid_shapes(architecture: Architecture) -> dict[str, Shape]:
    """The tensors of both mixers in a model that has Mamba in place of some layers' attention."""
    return {
        **shapes(architecture, f"{MAMBA_LAYER}mamba."),
        **projections(architecture, f"{ATTENTION_LAYER}self_attn."),
        ATTENTION_NORM: (architecture.hidden_size,),
    }


HYBRID_TABLE: Table = {
    **table(f"{MAMBA_LAYER}mamba.", f"{MAMBA_LAYER}input_layernorm.weight"),
    f"{_MEGATRON_ATTENTION}linear_qkv.layer_norm_weight": Rows(f"{ATTENTION_LAYER}input_layernorm.weight"),
    f"{_MEGATRON_ATTENTION}linear_qkv.weight": QueryGroups(*(f"{ATTENTION_LAYER}self_attn.{name}_proj.weight" for name in "qkv")),
    f"{_MEGATRON_ATTENTION}linear_proj.weight": Rows(f"{ATTENTION_LAYER}self_attn.o_proj.weight"),
}
