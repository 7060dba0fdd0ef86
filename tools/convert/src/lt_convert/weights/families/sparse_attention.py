"""DeepSeek-V3.2 and GLM-5: DeepSeek-V3 with an indexer in every layer.

megatron-core's sparse attention reads the normed latent of the queries, so TransformerEngine layers store the norms of the
latents as modules, and fuse the norm before a dense MLP only.
"""

from collections.abc import Mapping

from lt_convert.weights.families import deepseek, expert_layers, llama, multi_token
from lt_convert.weights.families.expert_layers import PREDICTION
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER
from lt_convert.weights.mapping import MEGATRON, MEGATRON_LOCAL, MEGATRON_TE, Family, Shape, Table
from lt_convert.weights.placeholders import DENSE_LAYER, EXPERT_LAYER
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT, OutputLayer, PaddedRows, Rows
from lt_shared.models.architecture import Architecture

_DENSE, _EXPERT = (f"decoder.layers.{layer}." for layer in (DENSE_LAYER, EXPERT_LAYER))
_INDEXER = {
    "linear_wq_b.weight": "wq_b.weight",
    "linear_wk.weight": "wk.weight",
    "k_norm.weight": "k_norm.weight",
    "k_norm.bias": "k_norm.bias",
    "linear_weights_proj.weight": "weights_proj.weight",
}


def attention(architecture: Architecture, layer: str = LAYER) -> dict[str, Shape]:
    latent, sparse, hidden = architecture.latent_attention, architecture.sparse_attention, architecture.hidden_size
    assert latent is not None and latent.q_lora_rank is not None and sparse is not None
    size = sparse.dsa_indexer_head_dim
    indexer: dict[str, Shape] = {
        "wq_b.weight": (sparse.query_size, latent.q_lora_rank),
        "wk.weight": (size, hidden),
        "k_norm.weight": (size,),
        "k_norm.bias": (size,),
        "weights_proj.weight": (sparse.dsa_indexer_n_heads, hidden),
    }
    tensors = {f"{layer}self_attn.indexer.{name}": shape for name, shape in indexer.items()}
    return deepseek.attention(architecture, layer) | tensors


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    return multi_token.decoder_shapes(architecture, attention)


def _attention_table(ours: str, layer: str) -> Table:
    indexer: Table = {
        f"{ours}self_attention.core_attention.indexer.{name}": Rows(f"{layer}self_attn.indexer.{other}")
        for name, other in _INDEXER.items()
    }
    return {**deepseek.attention_table(ours, layer), **indexer}


def _megatron_table(stacked: bool, engine: bool) -> Table:
    """By whether experts are stacked, and whether layers are TransformerEngine's; local ones otherwise."""
    attentions = dict(_attention_table(MEGATRON_LAYER, LAYER))
    block = dict(_attention_table(multi_token.MEGATRON_BLOCK, PREDICTION))
    if engine:
        norm = attentions.pop(f"{MEGATRON_LAYER}pre_mlp_layernorm.weight")
        attentions |= {f"{_DENSE}mlp.linear_fc1.layer_norm_weight": norm, f"{_EXPERT}pre_mlp_layernorm.weight": norm}
    block |= expert_layers.expert_table(multi_token.MEGATRON_BLOCK, PREDICTION, stacked)
    return {
        "embedding.word_embeddings.weight": PaddedRows(llama.EMBEDDING),
        **attentions,
        **expert_layers.dense_table(_DENSE),
        **expert_layers.expert_table(_EXPERT, stacked=stacked),
        **multi_token.megatron_table(block),
        "decoder.final_layernorm.weight": Rows(llama.FINAL_NORM),
        "output_layer.weight": OutputLayer(PaddedRows(OUTPUT_WEIGHT), PaddedRows(llama.EMBEDDING)),
    }


_INDEXER_MODULES = tuple(
    f"self_attention.core_attention.indexer.{name}" for name in ("linear_wq_b", "linear_wk", "k_norm", "linear_weights_proj")
)


def _modules(layer: str, experts: str) -> tuple[str, ...]:
    return (*deepseek.modules(layer, experts), *(f"{layer}{name}" for name in _INDEXER_MODULES))


SPARSE_ATTENTION = Family(
    name="sparse_attention",
    shapes=shapes,
    tables={
        MEGATRON: deepseek.both(_megatron_table(stacked=True, engine=False), _megatron_table(stacked=True, engine=True)),
        MEGATRON_TE: _megatron_table(stacked=False, engine=True),
        MEGATRON_LOCAL: _megatron_table(stacked=False, engine=False),
    },
    extra_state_modules=multi_token.extra_state_modules(_DENSE, _EXPERT, _modules),
    repeated=multi_token.REPEATED,
)
