"""The DeepSeek family, V2-Lite, V3 and R1, and Kimi K2: latent attention, dense layers first, then shared and routed experts.

All formats store RoPE's channels of queries and keys as DeepSeek does, adjacent ones paired, so nothing is permuted. Of the down
projection of keys and values the first rows are the latent, the last ones the rotated key; of the up projections the rows of a
head are together. TransformerEngine layers store the norm of a latent with the projection up from it
(`linear_q_up_proj.layer_norm_weight`), and the norm before a dense MLP with that; local layers have modules for both. torch_dist
gets both names, and either is read.
"""

from collections.abc import Mapping

from lt_convert.weights.families import expert_layers, llama, multi_token
from lt_convert.weights.families.expert_layers import PREDICTION
from lt_convert.weights.families.llama import LAYER, MEGATRON_LAYER, TORCHTITAN_LAYER
from lt_convert.weights.mapping import MEGATRON, MEGATRON_LOCAL, MEGATRON_TE, Family, Shape, Table
from lt_convert.weights.placeholders import DENSE_LAYER, EXPERT_LAYER
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT, Alias, OutputLayer, PaddedRows, Rows, WeightOp
from lt_shared.models.architecture import Architecture

_MEGATRON_DENSE, _MEGATRON_EXPERT = (f"decoder.layers.{layer}." for layer in (DENSE_LAYER, EXPERT_LAYER))
_TORCHTITAN_DENSE, _TORCHTITAN_EXPERT = (f"layers.{layer}." for layer in (DENSE_LAYER, EXPERT_LAYER))
# Local layers' names of the latents' norms, and those with TransformerEngine.
_LATENT_NORMS = {
    "q_layernorm.weight": "linear_q_up_proj.layer_norm_weight",
    "kv_layernorm.weight": "linear_kv_up_proj.layer_norm_weight",
}


def attention(architecture: Architecture, layer: str = LAYER) -> dict[str, Shape]:
    latent, hidden, heads = architecture.latent_attention, architecture.hidden_size, architecture.num_attention_heads
    assert latent is not None
    queries: dict[str, Shape] = {"q_proj": (architecture.query_size, hidden)}
    if latent.q_lora_rank:
        queries = {
            "q_a_proj": (latent.q_lora_rank, hidden),
            "q_a_layernorm": (latent.q_lora_rank,),
            "q_b_proj": (architecture.query_size, latent.q_lora_rank),
        }
    parts: dict[str, Shape] = {
        **queries,
        "kv_a_proj_with_mqa": (latent.kv_lora_rank + latent.qk_pos_emb_head_dim, hidden),
        "kv_a_layernorm": (latent.kv_lora_rank,),
        "kv_b_proj": (heads * (latent.qk_head_dim + latent.v_head_dim), latent.kv_lora_rank),
        "o_proj": (hidden, architecture.value_size),
    }
    return {
        f"{layer}input_layernorm.weight": (hidden,),
        **{f"{layer}self_attn.{name}.weight": shape for name, shape in parts.items()},
        f"{layer}post_attention_layernorm.weight": (hidden,),
    }


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    return multi_token.decoder_shapes(architecture, attention)


def attention_table(ours: str, layer: str) -> Table:
    attention, theirs = f"{ours}self_attention.", f"{layer}self_attn."
    names = {
        "linear_q_proj": "q_proj",
        "linear_q_down_proj": "q_a_proj",
        "q_layernorm": "q_a_layernorm",
        "linear_q_up_proj": "q_b_proj",
        "linear_kv_down_proj": "kv_a_proj_with_mqa",
        "kv_layernorm": "kv_a_layernorm",
        "linear_kv_up_proj": "kv_b_proj",
        "linear_proj": "o_proj",
    }
    return {
        f"{ours}input_layernorm.weight": Rows(f"{layer}input_layernorm.weight"),
        **{f"{attention}{name}.weight": Rows(f"{theirs}{other}.weight") for name, other in names.items()},
        f"{ours}pre_mlp_layernorm.weight": Rows(f"{layer}post_attention_layernorm.weight"),
    }


def _latent_norms_of_te(table: Table) -> dict[str, WeightOp]:
    return dict(
        llama.renamed(table, {f"self_attention.{name}": f"self_attention.{other}" for name, other in _LATENT_NORMS.items()})
    )


def _megatron_table(stacked: bool, engine: bool) -> Table:
    """By whether experts are stacked, and whether layers are TransformerEngine's; local ones otherwise."""
    attentions = dict(attention_table(MEGATRON_LAYER, LAYER))
    block = dict(attention_table(multi_token.MEGATRON_BLOCK, PREDICTION))
    if engine:
        attentions, block = _latent_norms_of_te(attentions), _latent_norms_of_te(block)
        norm = attentions.pop(f"{MEGATRON_LAYER}pre_mlp_layernorm.weight")
        attentions |= {
            f"{_MEGATRON_DENSE}mlp.linear_fc1.layer_norm_weight": norm,
            f"{_MEGATRON_EXPERT}pre_mlp_layernorm.weight": norm,
        }
    block |= expert_layers.expert_table(multi_token.MEGATRON_BLOCK, PREDICTION, stacked)
    return {
        "embedding.word_embeddings.weight": PaddedRows(llama.EMBEDDING),
        **attentions,
        **expert_layers.dense_table(_MEGATRON_DENSE),
        **expert_layers.expert_table(_MEGATRON_EXPERT, stacked=stacked),
        **multi_token.megatron_table(block),
        "decoder.final_layernorm.weight": Rows(llama.FINAL_NORM),
        "output_layer.weight": OutputLayer(PaddedRows(OUTPUT_WEIGHT), PaddedRows(llama.EMBEDDING)),
    }


def both(first: Table, second: Table) -> Table:
    """The first table, with what only the second one has as further names."""
    return {**first, **{name: Alias(op, written=True) for name, op in second.items() if name not in first}}


def _torchtitan_attention(ours: str, layer: str) -> Table:
    names = {
        "wq": "q_proj",
        "wq_a": "q_a_proj",
        "q_norm": "q_a_layernorm",
        "wq_b": "q_b_proj",
        "wkv_a": "kv_a_proj_with_mqa",
        "kv_norm": "kv_a_layernorm",
        "wkv_b": "kv_b_proj",
        "wo": "o_proj",
    }
    return {
        f"{ours}attention_norm.weight": Rows(f"{layer}input_layernorm.weight"),
        **{f"{ours}attention.{name}.weight": Rows(f"{layer}self_attn.{other}.weight") for name, other in names.items()},
        f"{ours}ffn_norm.weight": Rows(f"{layer}post_attention_layernorm.weight"),
    }


TORCHTITAN_TABLE: Table = {
    "tok_embeddings.weight": Rows(llama.EMBEDDING),
    **_torchtitan_attention(TORCHTITAN_LAYER, LAYER),
    **expert_layers.torchtitan_dense_table(_TORCHTITAN_DENSE),
    **expert_layers.torchtitan_expert_table(_TORCHTITAN_EXPERT),
    **multi_token.torchtitan_table(
        {
            **_torchtitan_attention(multi_token.TORCHTITAN_LAYER, PREDICTION),
            **expert_layers.torchtitan_expert_table(multi_token.TORCHTITAN_LAYER, PREDICTION),
        }
    ),
    "norm.weight": Rows(llama.FINAL_NORM),
    "lm_head.weight": OutputLayer(Rows(OUTPUT_WEIGHT), Rows(llama.EMBEDDING), written=True),
}

_ATTENTION_MODULES = (
    *("linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj"),
    *("core_attention", "linear_proj"),
)


def modules(layer: str, experts: str) -> tuple[str, ...]:
    """Return the modules of a layer with an `_extra_state` of TransformerEngine. `experts` prefixes a layer with experts."""
    attention = tuple(f"{layer}self_attention.{name}" for name in _ATTENTION_MODULES)
    return (f"{layer}input_layernorm", *attention, f"{experts}pre_mlp_layernorm")


DEEPSEEK = Family(
    name="deepseek",
    shapes=shapes,
    tables={
        MEGATRON: both(_megatron_table(stacked=True, engine=False), _megatron_table(stacked=True, engine=True)),
        MEGATRON_TE: _megatron_table(stacked=False, engine=True),
        MEGATRON_LOCAL: _megatron_table(stacked=False, engine=False),
    }
    | llama.torchtitan_tables(TORCHTITAN_TABLE, expert_layers.NAMES_OF_2025),
    extra_state_modules=multi_token.extra_state_modules(_MEGATRON_DENSE, _MEGATRON_EXPERT, modules),
    repeated=multi_token.REPEATED,
)
