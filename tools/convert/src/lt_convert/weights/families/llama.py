"""The Llama family: Llama 2, 3, 3.1 and 3.2, and Mistral, which differs only in its sliding window.

RoPE pairs channel i of a head with channel i + head_dim / 2 in Megatron and in Hugging Face, and adjacent channels in
TorchTitan's Llama: its queries and keys are permuted within each head. TransformerEngine layers store a norm with the linear
layer that follows it (`linear_qkv.layer_norm_weight`), and torch_dist has these names for local layers, too; Megatron's legacy
format has the names of the layers in use.
"""

from collections.abc import Mapping

from lt_convert.weights.mapping import MEGATRON, MEGATRON_LOCAL, MEGATRON_TE, TORCHTITAN, TORCHTITAN_2025, Family, Shape, Table
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT, Alias, InterleavedRope, OutputLayer, PaddedRows, QueryGroups, Rows
from lt_shared.models.architecture import Architecture

EMBEDDING, FINAL_NORM = "model.embed_tokens.weight", "model.norm.weight"
LAYER = "model.layers.{layer}."
QUERY, KEY, VALUE = (f"{LAYER}self_attn.{letter}_proj.weight" for letter in "qkv")
GATE, UP, DOWN = (f"{LAYER}mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
PROJECTION = f"{LAYER}self_attn.o_proj.weight"
ATTENTION_NORM, MLP_NORM = f"{LAYER}input_layernorm.weight", f"{LAYER}post_attention_layernorm.weight"

MEGATRON_LAYER = "decoder.layers.{layer}."
TORCHTITAN_LAYER = "layers.{layer}."
# What these parts of names are in Megatron's local layers, and in TorchTitan up to 0.2.
LOCAL_NAMES = {
    "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
    "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm.",
}
NAMES_OF_2025 = {"attention.qkv_linear.": "attention.", "lm_head.": "output."}


def decoder(architecture: Architecture, layer: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the canonical tensors of a decoder; `layer` has the tensors per layer."""
    vocabulary = (architecture.vocab_size, architecture.hidden_size)
    output = {} if architecture.tie_embeddings else {OUTPUT_WEIGHT: vocabulary}
    return {EMBEDDING: vocabulary, **layer, FINAL_NORM: (architecture.hidden_size,), **output}


def projections(architecture: Architecture, prefix: str, output: str = "o_proj") -> dict[str, Shape]:
    """The weights of an attention layer whose names begin with `prefix`; `output` names the last projection."""
    hidden, queries, keys = architecture.hidden_size, architecture.query_size, architecture.kv_size
    return {
        f"{prefix}q_proj.weight": (queries, hidden),
        f"{prefix}k_proj.weight": (keys, hidden),
        f"{prefix}v_proj.weight": (keys, hidden),
        f"{prefix}{output}.weight": (hidden, queries),
    }


def attention(architecture: Architecture) -> dict[str, Shape]:
    norm: Shape = (architecture.hidden_size,)
    return {ATTENTION_NORM: norm, **projections(architecture, f"{LAYER}self_attn."), MLP_NORM: norm}


def feed_forward(architecture: Architecture) -> dict[str, Shape]:
    hidden, ffn = architecture.hidden_size, architecture.ffn_hidden_size
    return {GATE: (ffn, hidden), UP: (ffn, hidden), DOWN: (hidden, ffn)}


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    return decoder(architecture, attention(architecture) | feed_forward(architecture))


def without_attention(table: Table) -> Table:
    """The rows of a decoder's `table` but for its attention, which only some layers of a model may have."""
    return {pattern: op for pattern, op in table.items() if ".self_attention." not in pattern}


MEGATRON_TABLE: Table = {
    "embedding.word_embeddings.weight": PaddedRows(EMBEDDING),
    f"{MEGATRON_LAYER}self_attention.linear_qkv.layer_norm_weight": Rows(ATTENTION_NORM),
    f"{MEGATRON_LAYER}self_attention.linear_qkv.weight": QueryGroups(QUERY, KEY, VALUE),
    f"{MEGATRON_LAYER}self_attention.linear_proj.weight": Rows(PROJECTION),
    f"{MEGATRON_LAYER}mlp.linear_fc1.layer_norm_weight": Rows(MLP_NORM),
    f"{MEGATRON_LAYER}mlp.linear_fc1.weight": Rows(GATE, UP),
    f"{MEGATRON_LAYER}mlp.linear_fc2.weight": Rows(DOWN),
    "decoder.final_layernorm.weight": Rows(FINAL_NORM),
    "output_layer.weight": OutputLayer(PaddedRows(OUTPUT_WEIGHT), PaddedRows(EMBEDDING)),
}

TORCHTITAN_TABLE: Table = {
    "tok_embeddings.weight": Rows(EMBEDDING),
    f"{TORCHTITAN_LAYER}attention_norm.weight": Rows(ATTENTION_NORM),
    f"{TORCHTITAN_LAYER}attention.qkv_linear.wq.weight": InterleavedRope(QUERY),
    f"{TORCHTITAN_LAYER}attention.qkv_linear.wk.weight": InterleavedRope(KEY),
    f"{TORCHTITAN_LAYER}attention.qkv_linear.wv.weight": Rows(VALUE),
    f"{TORCHTITAN_LAYER}attention.wo.weight": Rows(PROJECTION),
    f"{TORCHTITAN_LAYER}ffn_norm.weight": Rows(MLP_NORM),
    f"{TORCHTITAN_LAYER}feed_forward.w1.weight": Rows(GATE),
    f"{TORCHTITAN_LAYER}feed_forward.w2.weight": Rows(DOWN),
    f"{TORCHTITAN_LAYER}feed_forward.w3.weight": Rows(UP),
    "norm.weight": Rows(FINAL_NORM),
    "lm_head.weight": OutputLayer(Rows(OUTPUT_WEIGHT), Rows(EMBEDDING), written=True),
}

EXTRA_STATE_MODULES = (
    f"{MEGATRON_LAYER}self_attention.linear_qkv",
    f"{MEGATRON_LAYER}self_attention.linear_proj",
    f"{MEGATRON_LAYER}self_attention.core_attention",
    f"{MEGATRON_LAYER}mlp.linear_fc1",
    f"{MEGATRON_LAYER}mlp.linear_fc2",
    "decoder.final_layernorm",
)


def renamed(table: Table, parts: Mapping[str, str]) -> Table:
    """The same ops under other names: in every name, the keys of `parts` are replaced by their values."""
    result = {}
    for pattern, op in table.items():
        for old, new in parts.items():
            pattern = pattern.replace(old, new)
        result[pattern] = op
    return result


def megatron_tables(table: Table) -> dict[str, Table]:
    """Megatron's tables of a dense model, from the one of TransformerEngine layers."""
    return {MEGATRON: table, MEGATRON_TE: table, MEGATRON_LOCAL: renamed(table, LOCAL_NAMES)}


def torchtitan_tables(table: Table, names_of_2025: Mapping[str, str] = NAMES_OF_2025) -> dict[str, Table]:
    """TorchTitan's tables, from the one of version 0.3. For a while in 2026 only the output layer still had its old name."""
    between = {"output.weight": Alias(table["lm_head.weight"])}
    return {TORCHTITAN: {**table, **between}, TORCHTITAN_2025: renamed(table, names_of_2025)}


LLAMA = Family(
    name="llama",
    shapes=shapes,
    tables=megatron_tables(MEGATRON_TABLE) | torchtitan_tables(TORCHTITAN_TABLE),
    extra_state_modules=EXTRA_STATE_MODULES,
)
