"""The GPT family: GPT-2, and Megatron's GPT-3 style, whose output may be untied.

Hugging Face stores the weights of linear layers as [in, out], Megatron as [out, in]: all are transposed. Hugging Face's
`c_attn` has all queries, then all keys, then all values. TorchTitan has no such models.
"""

from collections.abc import Mapping

from lt_convert.weights.families import llama
from lt_convert.weights.mapping import Family, Shape, Table
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT, FusedQueryGroups, OutputLayer, PaddedRows, Rows, Transposed
from lt_shared.models.architecture import Architecture

EMBEDDING, POSITIONS, FINAL_NORM = "transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f."
LAYER = "transformer.h.{layer}."
MEGATRON_LAYER = llama.MEGATRON_LAYER
ATTENTION_NORM, MLP_NORM = f"{LAYER}ln_1.", f"{LAYER}ln_2."
QKV, PROJECTION = f"{LAYER}attn.c_attn.", f"{LAYER}attn.c_proj."
UP, DOWN = f"{LAYER}mlp.c_fc.", f"{LAYER}mlp.c_proj."


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    hidden, ffn, vocabulary = architecture.hidden_size, architecture.ffn_hidden_size, architecture.vocab_size
    qkv_size = architecture.query_size + 2 * architecture.kv_size
    output: dict[str, Shape] = {} if architecture.tie_embeddings else {OUTPUT_WEIGHT: (vocabulary, hidden)}
    return {
        EMBEDDING: (vocabulary, hidden),
        POSITIONS: (architecture.max_position_embeddings, hidden),
        **_norm(ATTENTION_NORM, hidden),
        **_linear(QKV, hidden, qkv_size),
        **_linear(PROJECTION, architecture.query_size, hidden),
        **_norm(MLP_NORM, hidden),
        **_linear(UP, hidden, ffn),
        **_linear(DOWN, ffn, hidden),
        **_norm(FINAL_NORM, hidden),
        **output,
    }


def _norm(name: str, size: int) -> dict[str, Shape]:
    return {f"{name}weight": (size,), f"{name}bias": (size,)}


def _linear(name: str, inputs: int, outputs: int) -> dict[str, Shape]:
    return {f"{name}weight": (inputs, outputs), f"{name}bias": (outputs,)}


MEGATRON_TABLE: Table = {
    "embedding.word_embeddings.weight": PaddedRows(EMBEDDING),
    "embedding.position_embeddings.weight": Rows(POSITIONS),
    f"{MEGATRON_LAYER}self_attention.linear_qkv.layer_norm_weight": Rows(f"{ATTENTION_NORM}weight"),
    f"{MEGATRON_LAYER}self_attention.linear_qkv.layer_norm_bias": Rows(f"{ATTENTION_NORM}bias"),
    f"{MEGATRON_LAYER}self_attention.linear_qkv.weight": Transposed(FusedQueryGroups(f"{QKV}weight")),
    f"{MEGATRON_LAYER}self_attention.linear_qkv.bias": FusedQueryGroups(f"{QKV}bias"),
    f"{MEGATRON_LAYER}self_attention.linear_proj.weight": Transposed(Rows(f"{PROJECTION}weight")),
    f"{MEGATRON_LAYER}self_attention.linear_proj.bias": Rows(f"{PROJECTION}bias"),
    f"{MEGATRON_LAYER}mlp.linear_fc1.layer_norm_weight": Rows(f"{MLP_NORM}weight"),
    f"{MEGATRON_LAYER}mlp.linear_fc1.layer_norm_bias": Rows(f"{MLP_NORM}bias"),
    f"{MEGATRON_LAYER}mlp.linear_fc1.weight": Transposed(Rows(f"{UP}weight")),
    f"{MEGATRON_LAYER}mlp.linear_fc1.bias": Rows(f"{UP}bias"),
    f"{MEGATRON_LAYER}mlp.linear_fc2.weight": Transposed(Rows(f"{DOWN}weight")),
    f"{MEGATRON_LAYER}mlp.linear_fc2.bias": Rows(f"{DOWN}bias"),
    "decoder.final_layernorm.weight": Rows(f"{FINAL_NORM}weight"),
    "decoder.final_layernorm.bias": Rows(f"{FINAL_NORM}bias"),
    "output_layer.weight": OutputLayer(PaddedRows(OUTPUT_WEIGHT), PaddedRows(EMBEDDING)),
}

GPT2 = Family(
    name="gpt2",
    shapes=shapes,
    tables=llama.megatron_tables(MEGATRON_TABLE),
    extra_state_modules=llama.EXTRA_STATE_MODULES,
    embedding=EMBEDDING,
    base_prefix="transformer.",
    # The causal mask.
    buffers=r".*\.attn\.(bias|masked_bias)",
)
