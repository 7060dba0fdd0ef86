"""The cost of a mixer on a rank: a row of `COSTS` for each kind (`Architecture.mixer`).

`lt_shared.models.architecture.mixers` counts its parameters. This module counts the parameters that tensor-parallel ranks do not
split, and the activations that a rank keeps.
"""

from collections.abc import Callable
from typing import NamedTuple

from lt_shared.models.architecture import Architecture
from lt_shared.models.architecture.sizes import ATTENTION, LATENT_ATTENTION


class Setting(NamedTuple):
    """What decides how much a mixer keeps. `fuses`: Triton's kernels compute a layer."""

    fuses: bool
    recomputes_core: bool
    context_ranks: int


class MixerCosts(NamedTuple):
    """`whole_weights` counts those that every tensor-parallel rank has, `split_vectors` the other parameters that it has not.

    Numbers per token, on all tensor-parallel ranks together: `kept` for the backward pass, and the `operands` of the GEMMs of
    weight gradients but for hidden states.
    """

    whole_weights: Callable[[Architecture], int]
    split_vectors: Callable[[Architecture], int]
    kept: Callable[[Architecture, Setting], int]
    operands: Callable[[Architecture], int]


def _none(model: Architecture) -> int:
    return 0


def _split_vectors_of_attention(model: Architecture) -> int:
    count = model.num_attention_heads if model.attention_sinks else 0
    if model.add_qkv_bias or model.add_bias_linear or model.family == "gpt":
        count += model.query_size + 2 * model.kv_size
    return count


def _kept_by_attention(model: Architecture, setting: Setting) -> int:
    keys_values = 2 * model.kv_size
    rotates_all = model.rotary_channels == model.kv_channels
    return _kept(model, setting, model.query_size + keys_values, keys_values, rotates_all)


def _kept_by_latent_attention(model: Architecture, setting: Setting) -> int:
    latent = model.latent_attention
    assert latent is not None
    keys_values = model.num_attention_heads * (latent.qk_head_dim + latent.v_head_dim)
    return _kept(model, setting, model.query_size + keys_values + model.value_size, keys_values, False)


def _kept(model: Architecture, setting: Setting, projected: int, keys_values: int, rotates_all: bool) -> int:
    """Queries, keys and values in the projection's output; those rotated; the result of attention, and its copy for the next."""
    llama, width = model.family == "llama", projected
    fused = llama and setting.fuses
    # One kernel splits and rotates them, and keeps its input only if it also computes norms.
    if llama and not (fused and rotates_all and not model.qk_layernorm):
        width += model.query_size + model.kv_size
    width += model.value_size * (1 if setting.recomputes_core or fused else 2)
    # The keys and values of the other context-parallel ranks.
    return width + (0 if setting.recomputes_core else (setting.context_ranks - 1) * keys_values)


def _operands_of_attention(model: Architecture) -> int:
    return model.query_size + 2 * model.kv_size + model.value_size


def _projections_to_latents(model: Architecture) -> int:
    latent = model.latent_attention
    assert latent is not None
    return model.hidden_size * ((latent.q_lora_rank or 0) + latent.kv_lora_rank + latent.qk_pos_emb_head_dim)


COSTS = {
    ATTENTION: MixerCosts(_none, _split_vectors_of_attention, _kept_by_attention, _operands_of_attention),
    LATENT_ATTENTION: MixerCosts(_projections_to_latents, _none, _kept_by_latent_attention, _operands_of_attention),
}
