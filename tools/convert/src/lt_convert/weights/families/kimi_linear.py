"""The Kimi Linear family: Kimi Delta Attention and latent attention, a dense layer first, then DeepSeek-V3's experts.

The names are the published ones, which transformers writes, too: Mixtral's for the experts. megatron-core has no such layers, and
neither Megatron's legacy format nor TorchTitan: torch_dist alone has them, as lt-train's models do.
"""

import re
from collections.abc import Mapping

from lt_convert.tensors.tensor import Tensor
from lt_convert.weights.families import deepseek, expert_layers, gated_delta, llama
from lt_convert.weights.families.expert_layers import EXPERT
from lt_convert.weights.families.llama import ATTENTION_NORM, MEGATRON_LAYER, MLP_NORM
from lt_convert.weights.mapping import BALANCING_BIAS, MEGATRON, Family, Shape, Table
from lt_convert.weights.placeholders import DENSE_LAYER, EXPERT_LAYER, layer_with
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT, Experts, OutputLayer, PaddedRows, Rows
from lt_shared.models.architecture import Architecture
from lt_shared.models.architecture.sizes import KIMI_DELTA, LATENT_ATTENTION

_ATTENTION, _DELTA = (f"model.layers.{layer_with(kind)}." for kind in (LATENT_ATTENTION, KIMI_DELTA))
_MEGATRON_ATTENTION, _MEGATRON_DELTA = (f"decoder.layers.{layer_with(kind)}." for kind in (LATENT_ATTENTION, KIMI_DELTA))
_MEGATRON_DENSE, _MEGATRON_EXPERT = (f"decoder.layers.{layer}." for layer in (DENSE_LAYER, EXPERT_LAYER))
_MIXER, _MEGATRON_MIXER = f"{_DELTA}self_attn.", f"{_MEGATRON_DELTA}self_attention."
# The published names, by lt-train's.
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "beta": "b_proj"}
_CONVOLUTIONS = {"query": "q_conv1d", "key": "k_conv1d", "value": "v_conv1d"}
_LATENTS = {"decay_down": "f_a_proj", "decay_up": "f_b_proj", "gate_down": "g_a_proj", "gate_up": "g_b_proj"}
_EXPERTS = f"{EXPERT}block_sparse_moe."
_ROUTER, _BIAS = f"{_EXPERTS}gate.weight", f"{_EXPERTS}gate.{BALANCING_BIAS}"
_GATE, _DOWN, _UP = (f"{_EXPERTS}experts.{{expert}}.w{digit}.weight" for digit in "123")
_SHARED_GATE, _SHARED_UP, _SHARED_DOWN = (f"{_EXPERTS}shared_experts.{name}_proj.weight" for name in ("gate", "up", "down"))

_DENSE_UNDER_EXPERTS = re.compile(r"\.block_sparse_moe\.((gate|up|down)_proj\.weight)$")


def _mixer_shapes(architecture: Architecture) -> dict[str, Shape]:
    hidden, delta = architecture.hidden_size, gated_delta.delta_of(architecture)
    width, size, heads = delta.key_size, delta.linear_key_head_dim, delta.linear_num_value_heads
    shapes: dict[str, Shape] = {
        **{f"{name}.weight": (width, hidden) for name in ("q_proj", "k_proj", "v_proj")},
        **{f"{name}.weight": (width, 1, delta.linear_conv_kernel_dim) for name in _CONVOLUTIONS.values()},
        "A_log": (1, 1, heads, 1),
        "f_a_proj.weight": (size, hidden),
        "f_b_proj.weight": (width, size),
        "dt_bias": (width,),
        "b_proj.weight": (heads, hidden),
        "g_a_proj.weight": (size, hidden),
        "g_b_proj.weight": (width, size),
        "o_norm.weight": (size,),
        "o_proj.weight": (hidden, width),
    }
    return {f"{_MIXER}{name}": shape for name, shape in shapes.items()}


def _expert_shapes(architecture: Architecture) -> dict[str, Shape]:
    hidden, width, experts = architecture.hidden_size, architecture.expert_size, architecture.num_experts or 0
    shared = architecture.moe_shared_expert_intermediate_size or 0
    gates: dict[str, Shape] = dict.fromkeys((_GATE, _UP), (width, hidden))
    shared_gates: dict[str, Shape] = dict.fromkeys((_SHARED_GATE, _SHARED_UP), (shared, hidden))
    return {
        _ROUTER: (experts, hidden),
        _BIAS: (experts,),
        **gates,
        _DOWN: (hidden, width),
        **shared_gates,
        _SHARED_DOWN: (hidden, shared),
    }


def _shapes(architecture: Architecture) -> Mapping[str, Shape]:
    attention = deepseek.attention(architecture, _ATTENTION)
    projections = {name: shape for name, shape in attention.items() if ".self_attn." in name}
    norms: dict[str, Shape] = dict.fromkeys((ATTENTION_NORM, MLP_NORM), (architecture.hidden_size,))
    feed_forward = expert_layers.dense_shapes(architecture) | _expert_shapes(architecture)
    return llama.decoder(architecture, _mixer_shapes(architecture) | projections | norms | feed_forward)


def _attention_table() -> Table:
    table = deepseek.attention_table(_MEGATRON_ATTENTION, _ATTENTION)
    return {name: op for name, op in table.items() if ".self_attention." in name}


def _as_published(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the MLP of dense layers: transformers 5.23 writes it under the prefix of layers with experts."""
    return {_DENSE_UNDER_EXPERTS.sub(r".mlp.\1", name): tensor for name, tensor in tensors.items()}


_TABLE: Table = {
    "embedding.word_embeddings.weight": PaddedRows(llama.EMBEDDING),
    f"{MEGATRON_LAYER}input_layernorm.weight": Rows(ATTENTION_NORM),
    **{f"{_MEGATRON_MIXER}in_proj.weight.{part}": Rows(f"{_MIXER}{name}.weight") for part, name in _PROJECTIONS.items()},
    **{f"{_MEGATRON_MIXER}conv1d.weight.{part}": Rows(f"{_MIXER}{name}.weight") for part, name in _CONVOLUTIONS.items()},
    **{f"{_MEGATRON_MIXER}{part}.weight": Rows(f"{_MIXER}{name}.weight") for part, name in _LATENTS.items()},
    f"{_MEGATRON_MIXER}dt_bias": Rows(f"{_MIXER}dt_bias"),
    f"{_MEGATRON_MIXER}A_log": Rows(f"{_MIXER}A_log"),
    f"{_MEGATRON_MIXER}gated_norm.weight": Rows(f"{_MIXER}o_norm.weight"),
    f"{_MEGATRON_MIXER}out_proj.weight": Rows(f"{_MIXER}o_proj.weight"),
    **_attention_table(),
    f"{MEGATRON_LAYER}pre_mlp_layernorm.weight": Rows(MLP_NORM),
    **expert_layers.dense_table(_MEGATRON_DENSE),
    f"{_MEGATRON_EXPERT}mlp.router.weight": Rows(_ROUTER),
    f"{_MEGATRON_EXPERT}mlp.router.expert_bias": Rows(_BIAS),
    f"{_MEGATRON_EXPERT}mlp.experts.experts.linear_fc1.weight": Experts(Rows(_GATE, _UP)),
    f"{_MEGATRON_EXPERT}mlp.experts.experts.linear_fc2.weight": Experts(Rows(_DOWN)),
    f"{_MEGATRON_EXPERT}mlp.shared_experts.linear_fc1.weight": Rows(_SHARED_GATE, _SHARED_UP),
    f"{_MEGATRON_EXPERT}mlp.shared_experts.linear_fc2.weight": Rows(_SHARED_DOWN),
    "decoder.final_layernorm.weight": Rows(llama.FINAL_NORM),
    "output_layer.weight": OutputLayer(PaddedRows(OUTPUT_WEIGHT), PaddedRows(llama.EMBEDDING)),
}
KIMI_LINEAR = Family(
    name="kimi_linear",
    shapes=_shapes,
    tables={MEGATRON: _TABLE},
    # No program with TransformerEngine's modules, which alone store such states, has these layers.
    extra_state_modules=(),
    hf_form=_as_published,
)
