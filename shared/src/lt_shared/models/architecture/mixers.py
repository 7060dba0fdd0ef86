"""Count a mixer's parameters by the kind of mixer (the rows of `MIXERS`). `Architecture.mixer` names a layer's kind."""

from collections.abc import Callable
from typing import NamedTuple

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
    Sizes,
)


class Mixer(NamedTuple):
    """The sizes of one kind of mixer.

    `weights` counts the weights that every token is multiplied with once, `vectors` all other parameters: biases, sinks, inner
    norms. `divided` and `shared` name and count the units that tensor-parallel ranks divide. The number of ranks must divide each
    count in `divided`. A count in `shared` may also be smaller and divide the number of ranks: then several ranks hold each unit.

    With `has_scores`, the mixer multiplies queries and keys for all pairs of tokens. Without `splits_samples`, a rank needs whole
    samples, and there is no context parallelism. `exchanged` names and counts the units for which context-parallel ranks exchange
    tokens: the number of tensor-parallel times context-parallel ranks must divide each count. In `exchanged_shared`, a count may
    also divide that number, as in `shared`. `products` counts a token's multiplications without a weight that do not depend on
    the length of a sample; `pair_products` counts the multiplications beside attention for each pair of a token and an earlier
    one.
    """

    weights: Callable[[Sizes], int]
    vectors: Callable[[Sizes], int]
    divided: Callable[[Sizes], dict[str, int]]
    shared: Callable[[Sizes], dict[str, int]]
    has_scores: bool = True
    splits_samples: bool = True
    exchanged: Callable[[Sizes], dict[str, int]] = lambda model: {}
    exchanged_shared: Callable[[Sizes], dict[str, int]] = lambda model: {}
    products: Callable[[Sizes], int] = lambda model: 0
    pair_products: Callable[[Sizes], int] = lambda model: 0


def _attention_divided(model: Sizes) -> dict[str, int]:
    divided = {"attention heads": model.num_attention_heads, "channels of keys and values": 2 * model.kv_size}
    # The rows of an output gate lie between the rows of queries and of keys, which ranks that share a group do not exchange.
    return divided | ({"query groups of gated attention": model.num_query_groups} if model.attention_output_gate else {})


def _attention_shared(model: Sizes) -> dict[str, int]:
    return {"query groups": model.num_query_groups}


def _latent_attention_divided(model: Sizes) -> dict[str, int]:
    return {"attention heads": model.num_attention_heads}


def _none_shared(model: Sizes) -> dict[str, int]:
    return {}


def _attention_weights(model: Sizes) -> int:
    gates = model.query_size if model.attention_output_gate else 0
    return model.hidden_size * (model.query_size + gates + 2 * model.kv_size) + model.query_size * model.hidden_size


def _attention_vectors(model: Sizes) -> int:
    total = 0
    if model.qk_layernorm:
        is_of_all_heads = model.qk_layernorm_width == "all_heads"
        norms = model.query_size + model.kv_size if is_of_all_heads else 2 * model.kv_channels
        total += norms * model.vectors_of_norm
    has_biases = model.add_bias_linear or model.family == "gpt"
    if has_biases or model.add_qkv_bias:
        total += model.query_size + 2 * model.kv_size
    if has_biases:
        total += model.hidden_size
    return total + (model.num_attention_heads if model.attention_sinks else 0)


def _latent_attention_weights(model: Sizes) -> int:
    latent, hidden = model.latent_attention, model.hidden_size
    assert latent is not None
    queries = hidden * model.query_size
    if latent.q_lora_rank:
        queries = latent.q_lora_rank * (hidden + model.query_size)
    keys_and_values = model.num_attention_heads * (latent.qk_head_dim + latent.v_head_dim)
    down = hidden * (latent.kv_lora_rank + latent.qk_pos_emb_head_dim)
    return queries + down + latent.kv_lora_rank * keys_and_values + model.value_size * hidden


def _latent_attention_vectors(model: Sizes) -> int:
    latent = model.latent_attention
    assert latent is not None
    return (latent.q_lora_rank or 0) + latent.kv_lora_rank


def _sparse_attention_weights(model: Sizes) -> int:
    latent, sparse = model.latent_attention, model.sparse_attention
    assert latent is not None and latent.q_lora_rank is not None and sparse is not None
    indexer = latent.q_lora_rank * sparse.query_size
    indexer += model.hidden_size * (sparse.dsa_indexer_head_dim + sparse.dsa_indexer_n_heads)
    return _latent_attention_weights(model) + indexer


def _sparse_attention_vectors(model: Sizes) -> int:
    assert model.sparse_attention is not None
    return _latent_attention_vectors(model) + 2 * model.sparse_attention.dsa_indexer_head_dim


def _index_products(model: Sizes) -> int:
    assert model.sparse_attention is not None
    return model.sparse_attention.query_size


def _gated_delta_weights(model: Sizes) -> int:
    delta = model.gated_delta
    assert delta is not None
    convolution = delta.linear_conv_kernel_dim * delta.convolved_size
    return model.hidden_size * (delta.projected_size + delta.value_size) + convolution


def _gated_delta_vectors(model: Sizes) -> int:
    delta = model.gated_delta
    assert delta is not None
    return 2 * delta.linear_num_value_heads + delta.linear_value_head_dim


def _gated_delta_divided(model: Sizes) -> dict[str, int]:
    delta = model.gated_delta
    assert delta is not None
    return {
        "key heads of gated delta": delta.linear_num_key_heads,
        "value heads of gated delta": delta.linear_num_value_heads,
    }


def _gated_delta_products(model: Sizes) -> int:
    """Four per number of the state, as Megatron-LM counts them: it is decayed, read, written, and read by the query.

    A kernel that computes in chunks multiplies more often.
    """
    assert model.gated_delta is not None
    return 4 * model.gated_delta.state_size


def _kimi_delta_weights(model: Sizes) -> int:
    """The projections of gated delta layers but for decays and gates, which pass through latents."""
    delta = model.gated_delta
    assert delta is not None
    latents = 2 * delta.linear_key_head_dim * (model.hidden_size + delta.value_size)
    return _gated_delta_weights(model) + latents


def _kimi_delta_vectors(model: Sizes) -> int:
    delta = model.gated_delta
    assert delta is not None
    return delta.linear_num_value_heads + delta.key_size + delta.linear_value_head_dim


def _short_convolution_weights(model: Sizes) -> int:
    assert model.short_convolution is not None
    return model.hidden_size * (4 * model.hidden_size + model.short_convolution.taps)


def _short_convolution_divided(model: Sizes) -> dict[str, int]:
    return {"channels of short convolutions": model.hidden_size}


def _mamba_weights(model: Sizes) -> int:
    mamba = model.mamba
    assert mamba is not None
    return model.hidden_size * (mamba.projected_size + mamba.inner_size) + mamba.taps * mamba.convolved_size


def _mamba_vectors(model: Sizes) -> int:
    """A_log, D and a bias of the time step per head, the output's norm, and the bias of the convolution."""
    mamba = model.mamba
    assert mamba is not None
    norm = mamba.inner_size if mamba.has_norm else 0
    return 3 * mamba.mamba_num_heads + norm + (mamba.convolved_size if mamba.convolution_bias else 0)


def _mamba_divided(model: Sizes) -> dict[str, int]:
    assert model.mamba is not None
    return {"groups of Mamba heads": model.mamba.mamba_num_groups}


def _mamba_exchanged(model: Sizes) -> dict[str, int]:
    assert model.mamba is not None
    return {"Mamba heads": model.mamba.mamba_num_heads}


def _mamba_products(model: Sizes) -> int:
    """Half of seven per number of the state: Megatron-LM counts 7 FLOPs for each (`mamba_layer_flops` of its training.py).

    A scan in chunks multiplies more often.
    """
    assert model.mamba is not None
    return 7 * model.mamba.state_size // 2


MIXERS = {
    ATTENTION: Mixer(_attention_weights, _attention_vectors, _attention_divided, _attention_shared),
    LATENT_ATTENTION: Mixer(_latent_attention_weights, _latent_attention_vectors, _latent_attention_divided, _none_shared),
    SPARSE_ATTENTION: Mixer(
        _sparse_attention_weights,
        _sparse_attention_vectors,
        _latent_attention_divided,
        _none_shared,
        splits_samples=False,
        pair_products=_index_products,
    ),
    GATED_DELTA: Mixer(
        _gated_delta_weights,
        _gated_delta_vectors,
        _gated_delta_divided,
        _none_shared,
        has_scores=False,
        exchanged=_gated_delta_divided,
        products=_gated_delta_products,
    ),
    KIMI_DELTA: Mixer(
        _kimi_delta_weights,
        _kimi_delta_vectors,
        _gated_delta_divided,
        _none_shared,
        has_scores=False,
        exchanged=_gated_delta_divided,
        products=_gated_delta_products,
    ),
    SHORT_CONVOLUTION: Mixer(
        _short_convolution_weights,
        lambda model: 0,
        _short_convolution_divided,
        _none_shared,
        has_scores=False,
        exchanged=_short_convolution_divided,
    ),
    MAMBA: Mixer(
        _mamba_weights,
        _mamba_vectors,
        _mamba_divided,
        _none_shared,
        has_scores=False,
        exchanged=_mamba_exchanged,
        exchanged_shared=_mamba_divided,
        products=_mamba_products,
    ),
    MAMBA_AND_ATTENTION: Mixer(
        lambda model: _mamba_weights(model) + _attention_weights(model),
        lambda model: _mamba_vectors(model) + _attention_vectors(model),
        lambda model: _mamba_divided(model) | _attention_divided(model),
        _attention_shared,
        splits_samples=False,
        products=_mamba_products,
    ),
    NO_MIXER: Mixer(lambda model: 0, lambda model: 0, _none_shared, _none_shared, has_scores=False),
}
