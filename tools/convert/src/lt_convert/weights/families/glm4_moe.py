"""The GLM-4.5 family: Qwen's attention, with biases and norms of queries and keys, DeepSeek's experts and prediction layers.

Megatron's torch_dist has the norm before the experts under the name of a dense layer's (`linear_fc1.layer_norm_weight`) with
local layers, and as `pre_mlp_layernorm` with TransformerEngine's: both are written, and either is read. TorchTitan has no such
models.
"""

from collections.abc import Mapping

from lt_convert.weights.families import expert_layers, llama, multi_token
from lt_convert.weights.families.expert_layers import PREDICTION
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER
from lt_convert.weights.mapping import MEGATRON, MEGATRON_LOCAL, MEGATRON_TE, Family, Shape, Table
from lt_convert.weights.placeholders import DENSE_LAYER, EXPERT_LAYER
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT, Alias, OutputLayer, PaddedRows, QueryGroups, Rows
from lt_shared.models.architecture import Architecture

_DENSE, _EXPERT = (f"decoder.layers.{layer}." for layer in (DENSE_LAYER, EXPERT_LAYER))


def attention(architecture: Architecture, layer: str = LAYER) -> dict[str, Shape]:
    hidden, queries, keys = architecture.hidden_size, architecture.query_size, architecture.kv_size
    sizes = {"q": queries, "k": keys, "v": keys}
    weights: dict[str, Shape] = {f"{layer}self_attn.{name}_proj.weight": (size, hidden) for name, size in sizes.items()}
    biases: dict[str, Shape] = {f"{layer}self_attn.{name}_proj.bias": (size,) for name, size in sizes.items()}
    norms: dict[str, Shape] = {f"{layer}self_attn.{name}_norm.weight": (architecture.kv_channels,) for name in "qk"}
    return {
        f"{layer}input_layernorm.weight": (hidden,),
        **weights,
        **(biases if architecture.add_qkv_bias else {}),
        **(norms if architecture.qk_layernorm else {}),
        f"{layer}self_attn.o_proj.weight": (hidden, queries),
        f"{layer}post_attention_layernorm.weight": (hidden,),
    }


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    return multi_token.decoder_shapes(architecture, attention)


def _attention_table(ours: str, layer: str, local: bool) -> Table:
    """`local` names the norm before attention as local layers do in files of a rank."""
    projections = [f"{layer}self_attn.{name}_proj" for name in "qkv"]
    norm = f"{ours}input_layernorm.weight" if local else f"{ours}self_attention.linear_qkv.layer_norm_weight"
    return {
        norm: Rows(f"{layer}input_layernorm.weight"),
        f"{ours}self_attention.linear_qkv.weight": QueryGroups(*(f"{name}.weight" for name in projections)),
        f"{ours}self_attention.linear_qkv.bias": QueryGroups(*(f"{name}.bias" for name in projections)),
        f"{ours}self_attention.q_layernorm.weight": Rows(f"{layer}self_attn.q_norm.weight"),
        f"{ours}self_attention.k_layernorm.weight": Rows(f"{layer}self_attn.k_norm.weight"),
        f"{ours}self_attention.linear_proj.weight": Rows(f"{layer}self_attn.o_proj.weight"),
    }


def _experts_table(ours: str, layer: str, stacked: bool) -> Table:
    norm = Rows(f"{layer}post_attention_layernorm.weight")
    second: Table = {f"{ours}mlp.linear_fc1.layer_norm_weight": Alias(norm, written=True)} if stacked else {}
    return {f"{ours}pre_mlp_layernorm.weight": norm, **second, **expert_layers.expert_table(ours, layer, stacked)}


def _megatron_table(stacked: bool, local: bool) -> Table:
    """By whether experts are stacked, as in torch_dist, and by the layers of a rank's file."""
    dense_norm = f"{_DENSE}pre_mlp_layernorm.weight" if local else f"{_DENSE}mlp.linear_fc1.layer_norm_weight"
    block = _attention_table(multi_token.MEGATRON_BLOCK, PREDICTION, local)
    return {
        "embedding.word_embeddings.weight": PaddedRows(llama.EMBEDDING),
        **_attention_table(MEGATRON_LAYER, LAYER, local),
        dense_norm: Rows(f"{expert_layers.DENSE}post_attention_layernorm.weight"),
        **expert_layers.dense_table(_DENSE),
        **_experts_table(_EXPERT, expert_layers.EXPERT, stacked),
        **multi_token.megatron_table({**block, **_experts_table(multi_token.MEGATRON_BLOCK, PREDICTION, stacked)}),
        "decoder.final_layernorm.weight": Rows(llama.FINAL_NORM),
        "output_layer.weight": OutputLayer(PaddedRows(OUTPUT_WEIGHT), PaddedRows(llama.EMBEDDING)),
    }


_ATTENTION_MODULES = ("linear_qkv", "q_layernorm", "k_layernorm", "core_attention", "linear_proj")


def _modules(layer: str, experts: str) -> tuple[str, ...]:
    return (*(f"{layer}self_attention.{name}" for name in _ATTENTION_MODULES), f"{experts}pre_mlp_layernorm")


GLM4_MOE = Family(
    name="glm4_moe",
    shapes=shapes,
    tables={
        MEGATRON: _megatron_table(stacked=True, local=False),
        MEGATRON_TE: _megatron_table(stacked=False, local=False),
        MEGATRON_LOCAL: _megatron_table(stacked=False, local=True),
    },
    extra_state_modules=multi_token.extra_state_modules(_DENSE, _EXPERT, _modules),
    repeated=multi_token.REPEATED,
)
