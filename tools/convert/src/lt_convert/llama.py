"""The Llama family (Llama 2, 3, 3.1, 3.2): its tensors as Hugging Face names them, and where Megatron keeps each.

Both use the half-rotation RoPE, so no head is permuted. Megatron's local layers and its TransformerEngine layers store the norms
under the same names in torch_dist.
"""

from lt_convert.mapping import Family, PaddedRows, QueryGroups, Rows

EMBEDDING, OUTPUT, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
_HF = "model.layers.{layer}."
_MEGATRON = "decoder.layers.{layer}."
QUERY, KEY, VALUE = (f"{_HF}self_attn.{part}_proj.weight" for part in "qkv")
GATE, UP, DOWN = (f"{_HF}mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
PROJECTION = f"{_HF}self_attn.o_proj.weight"
ATTENTION_NORM, MLP_NORM = f"{_HF}input_layernorm.weight", f"{_HF}post_attention_layernorm.weight"

LLAMA = Family(
    shapes={
        EMBEDDING: ("vocab_size", "hidden_size"),
        ATTENTION_NORM: ("hidden_size",),
        QUERY: ("query_size", "hidden_size"),
        KEY: ("kv_size", "hidden_size"),
        VALUE: ("kv_size", "hidden_size"),
        PROJECTION: ("hidden_size", "query_size"),
        MLP_NORM: ("hidden_size",),
        GATE: ("ffn_hidden_size", "hidden_size"),
        UP: ("ffn_hidden_size", "hidden_size"),
        DOWN: ("hidden_size", "ffn_hidden_size"),
        FINAL_NORM: ("hidden_size",),
        OUTPUT: ("vocab_size", "hidden_size"),
    },
    vocabulary=frozenset({EMBEDDING, OUTPUT}),
    untied=frozenset({OUTPUT}),
    megatron={
        "embedding.word_embeddings.weight": PaddedRows(EMBEDDING),
        f"{_MEGATRON}self_attention.linear_qkv.layer_norm_weight": Rows(ATTENTION_NORM),
        f"{_MEGATRON}self_attention.linear_qkv.weight": QueryGroups(QUERY, KEY, VALUE),
        f"{_MEGATRON}self_attention.linear_proj.weight": Rows(PROJECTION),
        f"{_MEGATRON}mlp.linear_fc1.layer_norm_weight": Rows(MLP_NORM),
        f"{_MEGATRON}mlp.linear_fc1.weight": Rows(GATE, UP),
        f"{_MEGATRON}mlp.linear_fc2.weight": Rows(DOWN),
        "decoder.final_layernorm.weight": Rows(FINAL_NORM),
        "output_layer.weight": PaddedRows(OUTPUT),
    },
)
