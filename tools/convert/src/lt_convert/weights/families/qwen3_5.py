"""The Qwen3.5 families: Qwen3-Next with other input projections, and a feed-forward layer in the dense models.

The published files have a vision tower and layers of multi-token prediction beside the language model: both are left out. They
stack the experts of a layer in two tensors; transformers writes a tensor for each expert, as is done here.
"""

from collections.abc import Mapping

from lt_convert.tensors.tensor import Tensor
from lt_convert.weights.families import gated_delta, llama, qwen2_moe, qwen3_next
from lt_convert.weights.families.gated_delta import CONVOLVED, MEGATRON_MIXER, MIXER, Part
from lt_convert.weights.mapping import MEGATRON, Family, Shape, Table
from lt_convert.weights.weight_ops import Rows
from lt_shared.models.architecture import Architecture

_QKV, _Z, _BETA, _ALPHA = (f"{MIXER}in_proj_{name}.weight" for name in ("qkv", "z", "b", "a"))
_GATE_UP, _DOWN = ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"


def _layer_shapes(architecture: Architecture) -> dict[str, Shape]:
    hidden, delta = architecture.hidden_size, gated_delta.delta_of(architecture)
    projections: dict[str, Shape] = {
        _QKV: (delta.convolved_size, hidden),
        _Z: (delta.value_size, hidden),
        _BETA: (delta.linear_num_value_heads, hidden),
        _ALPHA: (delta.linear_num_value_heads, hidden),
    }
    return gated_delta.decoder_shapes(architecture, projections)


def _dense_shapes(architecture: Architecture) -> Mapping[str, Shape]:
    return llama.decoder(architecture, _layer_shapes(architecture) | llama.feed_forward(architecture))


def _mixture_shapes(architecture: Architecture) -> Mapping[str, Shape]:
    return llama.decoder(architecture, _layer_shapes(architecture) | qwen2_moe.experts(architecture))


def _one_by_one(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give each of the stacked experts its tensors."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not name.endswith((_GATE_UP, _DOWN)):
            result[name] = tensor
            continue
        stack = name.rpartition(".")[0]
        for expert, weight in enumerate(tensor.slices()):
            if name.endswith(_DOWN):
                result[f"{stack}.{expert}.down_proj.weight"] = weight
                continue
            width = weight.shape[0] // 2
            for number, part in enumerate(("gate", "up")):
                result[f"{stack}.{expert}.{part}_proj.weight"] = weight.take(0, range(number * width, (number + 1) * width))
    return result


_PROJECTIONS: Table = {
    **{f"{MEGATRON_MIXER}in_proj.weight.{part}": Part(_QKV, CONVOLVED, part) for part in CONVOLVED},
    f"{MEGATRON_MIXER}in_proj.weight.z": Rows(_Z),
    f"{MEGATRON_MIXER}in_proj.weight.beta": Rows(_BETA),
    f"{MEGATRON_MIXER}in_proj.weight.alpha": Rows(_ALPHA),
}
_OTHER_PARTS = r"mtp\..*|(model\.)?visual\..*"
_PREFIXES = {r"model\.language_model\.": "model."}
QWEN3_5 = Family(
    name="qwen3_5",
    shapes=_dense_shapes,
    tables={MEGATRON: {**llama.without_attention(llama.MEGATRON_TABLE), **gated_delta.MEGATRON_TABLE, **_PROJECTIONS}},
    extra_state_modules=gated_delta.extra_state_modules(llama.EXTRA_STATE_MODULES),
    hf_prefixes=_PREFIXES,
    other_parts=_OTHER_PARTS,
)
QWEN3_5_MOE = Family(
    name="qwen3_5_moe",
    shapes=_mixture_shapes,
    tables={MEGATRON: {**qwen3_next.EXPERTS, **gated_delta.MEGATRON_TABLE, **_PROJECTIONS}},
    extra_state_modules=qwen3_next.QWEN3_NEXT.extra_state_modules,
    hf_prefixes=_PREFIXES,
    other_parts=_OTHER_PARTS,
    hf_form=_one_by_one,
)
