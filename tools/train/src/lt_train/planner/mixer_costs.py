"""The memory of a mixer on a rank: a row of `COSTS` for each kind (`Architecture.mixer`).

`lt_shared.models.architecture.mixers` counts a mixer's parameters. This module counts the parameters that tensor-parallel ranks
do not split, and the activations that a rank keeps.
"""

from collections.abc import Callable
from typing import NamedTuple

from lt_shared.models.architecture import Architecture, GatedDelta
from lt_shared.models.architecture.sizes import (
    ATTENTION,
    GATED_DELTA,
    KIMI_DELTA,
    LATENT_ATTENTION,
    MAMBA,
    MAMBA_AND_ATTENTION,
    NO_MIXER,
    SHORT_CONVOLUTION,
    SPARSE_ATTENTION,
)

# Tokens of a chunk of the gated delta rule and of Mamba's scan (`lt_train.ops`).
CHUNK = 64


class Setting(NamedTuple):
    """The settings that decide how many activations a mixer keeps.

    `fuses`: Triton's kernels compute a layer. `has_delta_kernels`: flash-linear-attention's kernels compute gated delta.
    """

    fuses: bool
    recomputes_core: bool
    context_ranks: int
    tensor_ranks: int = 1
    has_delta_kernels: bool = False


class MixerCosts(NamedTuple):
    """The functions that count a mixer's parameters and activations.

    `whole_weights` counts the weights that every tensor-parallel rank holds whole, `split_vectors` the biases and other vectors
    that the ranks split. In numbers per token, on all tensor-parallel ranks together, `activations` counts the activations kept
    for the backward pass, and `operands` the operands of the weight gradients' GEMMs without the hidden states. `recomputed`
    counts the float32 numbers that the backward pass of the mixer computes again, which only one layer has at a time.
    """

    whole_weights: Callable[[Architecture], int]
    split_vectors: Callable[[Architecture], int]
    activations: Callable[[Architecture, Setting], int]
    operands: Callable[[Architecture], int]
    recomputed: Callable[[Architecture, Setting], int] = lambda model, setting: 0


def _zero(model: Architecture) -> int:
    return 0


def _attention_vectors(model: Architecture) -> int:
    count = model.num_attention_heads if model.attention_sinks else 0
    if model.add_qkv_bias or model.add_bias_linear or model.family == "gpt":
        count += model.query_size + 2 * model.kv_size
    return count


def _attention_activations(model: Architecture, setting: Setting) -> int:
    # Ranks that share a query group each hold its key and value.
    keys = model.kv_size * max(1, setting.tensor_ranks // model.num_query_groups)
    rotates_all = model.rotary_channels == model.kv_channels
    # The gates, the copy of the others without them, and the product.
    gates = 2 * model.query_size + 2 * keys + model.value_size if model.attention_output_gate else 0
    return gates + _count_activations(model, setting, model.query_size + 2 * keys, 2 * keys, model.query_size + keys, rotates_all)


def _latent_attention_activations(model: Architecture, setting: Setting) -> int:
    latent = model.latent_attention
    assert latent is not None
    keys_values = model.num_attention_heads * (latent.qk_head_dim + latent.v_head_dim)
    projected = model.query_size + keys_values + model.value_size
    return _count_activations(model, setting, projected, keys_values, model.query_size + model.kv_size, False)


def _sparse_attention_kept(model: Architecture, setting: Setting) -> int:
    """Latent attention's activations, index queries, keys and weights in float32, and the chosen tokens, on every rank."""
    sparse = model.sparse_attention
    assert sparse is not None
    index = 2 * (sparse.query_size + sparse.dsa_indexer_head_dim + sparse.dsa_indexer_n_heads)
    chosen = 0 if setting.recomputes_core else 4 * sparse.dsa_indexer_topk
    return _latent_attention_activations(model, setting) + (index + chosen) * setting.tensor_ranks


def _sparse_projections(model: Architecture) -> int:
    latent, sparse = model.latent_attention, model.sparse_attention
    assert latent is not None and latent.q_lora_rank is not None and sparse is not None
    indexer = latent.q_lora_rank * sparse.query_size
    return _latent_projections(model) + indexer + model.hidden_size * (sparse.dsa_indexer_head_dim + sparse.dsa_indexer_n_heads)


def _count_activations(
    model: Architecture, setting: Setting, projected: int, keys_values: int, rotated: int, rotates_all: bool
) -> int:
    """Count the numbers per token: the QKV projection's output, the rotated QKV, attention's output, and its contiguous copy.

    The projection's output has `projected` numbers per token, including `keys_values` numbers of keys and values. Queries and
    keys have `rotated` numbers.
    """
    llama, width = model.family == "llama", projected
    fused = llama and setting.fuses
    # One kernel splits and rotates queries and keys. It keeps its input only if it also normalizes them.
    if llama and not (fused and rotates_all and not model.qk_layernorm):
        width += rotated
    width += model.value_size * (1 if setting.recomputes_core or fused else 2)
    # The keys and values of the other context-parallel ranks.
    return width + (0 if setting.recomputes_core else (setting.context_ranks - 1) * keys_values)


def _attention_operands(model: Architecture) -> int:
    gates = model.query_size if model.attention_output_gate else 0
    return model.query_size + gates + 2 * model.kv_size + model.value_size


def _latent_projections(model: Architecture) -> int:
    latent = model.latent_attention
    assert latent is not None
    return model.hidden_size * ((latent.q_lora_rank or 0) + latent.kv_lora_rank + latent.qk_pos_emb_head_dim)


def _gated_delta_vectors(model: Architecture) -> int:
    assert model.gated_delta is not None
    return 2 * model.gated_delta.linear_num_value_heads


def _gated_delta_kept(model: Architecture, setting: Setting) -> int:
    """The outputs of the first projection and inputs of the second; all between them is computed again."""
    delta = model.gated_delta
    assert delta is not None
    kept = delta.projected_size + delta.value_size
    return kept + (_kept_by_kernels(delta) if setting.has_delta_kernels else 0)


def _kept_by_kernels(delta: GatedDelta) -> int:
    """Normed queries and keys, values, the outputs, and a chunk's matrix for every value head."""
    return 2 * delta.key_size + 2 * delta.value_size + delta.linear_num_value_heads * CHUNK


def _gated_delta_recomputed(model: Architecture, setting: Setting) -> int:
    """The matrices between a chunk's tokens, the state before each chunk, and keys and values in several forms.

    For heads of 128 channels, autograd saves 3% less if a Triton kernel computes the states, and 10% more without it.
    """
    delta = model.gated_delta
    assert delta is not None
    keys, values = delta.linear_key_head_dim, delta.linear_value_head_dim
    if setting.has_delta_kernels:
        # In 16 bits: states and their gradients, and keys and values of the chunks with their gradients.
        return delta.linear_num_value_heads * (4 * keys + 4 * values + 2 * keys * values // CHUNK) // 2
    return delta.linear_num_value_heads * (5 * CHUNK + 6 * values + 6 * keys + keys * values // CHUNK)


def _gated_delta_operands(model: Architecture) -> int:
    delta = model.gated_delta
    assert delta is not None
    return delta.projected_size + delta.value_size


def _kimi_delta_projections(model: Architecture) -> int:
    """The projections to the latents of decays and gates."""
    assert model.gated_delta is not None
    return 2 * model.hidden_size * model.gated_delta.linear_key_head_dim


def _kimi_delta_vectors(model: Architecture) -> int:
    assert model.gated_delta is not None
    return model.gated_delta.linear_num_value_heads + model.gated_delta.key_size


def _kimi_delta_kept(model: Architecture, setting: Setting) -> int:
    """The outputs of the projections in front, both latents, and the inputs of the last projection."""
    delta = model.gated_delta
    assert delta is not None
    kept = delta.projected_size + 3 * delta.value_size + 2 * delta.linear_key_head_dim
    # The kernels keep a second matrix of a chunk, and the sums of the logarithms of the decays in float32.
    added = delta.linear_num_value_heads * CHUNK + 2 * delta.key_size
    return kept + (_kept_by_kernels(delta) + added if setting.has_delta_kernels else 0)


def _kimi_delta_operands(model: Architecture) -> int:
    delta = model.gated_delta
    assert delta is not None
    return delta.projected_size + 3 * delta.value_size + 2 * delta.linear_key_head_dim


def _kimi_delta_recomputed(model: Architecture, setting: Setting) -> int:
    """As of gated delta; and in each of log2(64) halvings, half the tokens' queries, and keys twice, with their decays."""
    delta = model.gated_delta
    assert delta is not None
    halvings = CHUNK.bit_length() - 1
    added = 2 if setting.has_delta_kernels else 4 * halvings + 3
    return _gated_delta_recomputed(model, setting) + added * delta.key_size


def _short_convolution_kept(model: Architecture, setting: Setting) -> int:
    """The outputs of the first projection and inputs of the second; all between them is computed again."""
    return 4 * model.hidden_size


def _short_convolution_operands(model: Architecture) -> int:
    return 4 * model.hidden_size


def _short_convolution_recomputed(model: Architecture, setting: Setting) -> int:
    """B * x, a shifted copy for every tap, and the convolution's output."""
    assert model.short_convolution is not None
    return (2 + model.short_convolution.taps) * model.hidden_size


def _mamba_vectors(model: Architecture) -> int:
    """All vectors, because the ranks divide every one."""
    mamba = model.mamba
    assert mamba is not None
    norm = mamba.inner_size if mamba.has_norm else 0
    return 3 * mamba.mamba_num_heads + norm + (mamba.convolved_size if mamba.convolution_bias else 0)


def _mamba_kept(model: Architecture, setting: Setting) -> int:
    """The outputs of the first projection and inputs of the second; all between them is computed again."""
    return _mamba_operands(model)


def _mamba_operands(model: Architecture) -> int:
    assert model.mamba is not None
    return model.mamba.projected_size + model.mamba.inner_size


def _mamba_matrices(model: Architecture, setting: Setting) -> int:
    """The matrices between a chunk's tokens, a state per chunk, values in several forms, and B and C."""
    mamba = model.mamba
    assert mamba is not None
    heads, values = mamba.mamba_num_heads, mamba.mamba_head_dim
    matrices = 3 * CHUNK + 7 * values + 2 * values * mamba.mamba_state_dim // CHUNK
    return heads * matrices + 4 * mamba.group_size + (2 + mamba.taps) * mamba.convolved_size


COSTS = {
    ATTENTION: MixerCosts(_zero, _attention_vectors, _attention_activations, _attention_operands),
    LATENT_ATTENTION: MixerCosts(_latent_projections, _zero, _latent_attention_activations, _attention_operands),
    SPARSE_ATTENTION: MixerCosts(_sparse_projections, _zero, _sparse_attention_kept, _attention_operands),
    GATED_DELTA: MixerCosts(_zero, _gated_delta_vectors, _gated_delta_kept, _gated_delta_operands, _gated_delta_recomputed),
    KIMI_DELTA: MixerCosts(
        _kimi_delta_projections, _kimi_delta_vectors, _kimi_delta_kept, _kimi_delta_operands, _kimi_delta_recomputed
    ),
    SHORT_CONVOLUTION: MixerCosts(
        _zero, _zero, _short_convolution_kept, _short_convolution_operands, _short_convolution_recomputed
    ),
    MAMBA: MixerCosts(_zero, _mamba_vectors, _mamba_kept, _mamba_operands, _mamba_matrices),
    MAMBA_AND_ATTENTION: MixerCosts(
        _zero,
        lambda model: _mamba_vectors(model) + _attention_vectors(model),
        lambda model, setting: _mamba_kept(model, setting) + _attention_activations(model, setting),
        lambda model: _mamba_operands(model) + _attention_operands(model),
        _mamba_matrices,
    ),
    NO_MIXER: MixerCosts(_zero, _zero, lambda model, setting: 0, _zero),
}
