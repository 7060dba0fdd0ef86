"""Describe a model for the log: the sizes of its architecture, and its exact numbers of parameters."""

from lt_shared.models.architecture import Architecture
from lt_shared.models.architecture.sizes import MAMBA, NO_MIXER
from lt_shared.models.rope_scaling import AnyScaling, RopeScaling


def describe(architecture: Architecture) -> list[str]:
    """Return the description as log lines."""
    model = architecture
    llama = model.family == "llama"
    parts = [
        f"{model.num_layers} layers of width {model.hidden_size}",
        *_mixer_words(model),
        *_expert_words(model),
        *_head_words(model),
        f"rotary base {model.rotary_base:g}{_unrotated_words(model)}"
        if llama
        else f"{model.max_position_embeddings} learned positions",
        _scaling_words(model.rope_scaling),
        _window_words(model),
        "sinks" if model.attention_sinks else "",
        _layer_words(model) if llama else "LayerNorm, GELU",
        "biases of queries, keys and values" if model.add_qkv_bias else "",
        "biases" if model.add_bias_linear else "",
        _qk_norm_words(model),
        *_factor_words(model),
        f"vocabulary {model.vocab_size}" + (", tied" if model.tie_embeddings else ""),
    ]
    count = f"{model.parameters():,} parameters"
    if model.num_experts:
        count += f", {model.active_parameters():,} of them active per token"
    if model.mtp_num_layers:
        count += f", and {model.mtp_parameters():,} of multi-token prediction"
    return [f"model {model.name}: {', '.join(part for part in parts if part)}", f"model {model.name}: {count}"]


def _mixer_words(model: Architecture) -> list[str]:
    """Describe all kinds of mixers except the last. The other words describe the last kind."""
    *earlier, _ = model.mixers
    names = {NO_MIXER: "an MLP alone", MAMBA: "Mamba-2"}
    words = [f"{names.get(kind, kind.replace('_', ' '))} in {len(model.mixers[kind])} of them" for kind in earlier]
    delta = model.gated_delta
    if delta is not None:
        keys = f"{delta.linear_num_key_heads} key heads of {delta.linear_key_head_dim}"
        words.append(f"with {keys} and {delta.linear_num_value_heads} value heads of {delta.linear_value_head_dim}")
    if model.short_convolution is not None:
        words.append(f"of {model.short_convolution.taps} taps")
    mamba = model.mamba
    if mamba is not None:
        groups = f"{mamba.mamba_num_heads} heads of {mamba.mamba_head_dim} in {mamba.mamba_num_groups} groups"
        beside = "Mamba-2 beside attention in every layer, " if model.side_by_side else ""
        words.append(f"{beside}with {groups} and states of {mamba.mamba_state_dim}")
    return words


def _expert_words(model: Architecture) -> list[str]:
    if not model.num_experts:
        return [f"feed-forward {model.ffn_hidden_size}"]
    dense, shared = model.moe_first_dense_layers, model.moe_shared_expert_intermediate_size
    groups = f" from {model.moe_router_group_topk} of {model.moe_router_num_groups} groups" if model.moe_router_num_groups else ""
    return [
        f"{model.num_experts} experts of {model.expert_size}, {model.moe_router_topk} per token{groups}",
        f"a shared one of {shared}{' with a gate' if model.moe_shared_expert_gate else ''}" if shared else "",
        "balanced by biases" if model.moe_router_enable_expert_bias else "",
        f"feed-forward {model.ffn_hidden_size} in the first {dense}" if dense else "",
    ]


def _head_words(model: Architecture) -> list[str]:
    latent = model.latent_attention
    if latent is None:
        gates = " with output gates" if model.attention_output_gate else ""
        return [f"{model.num_attention_heads} heads of {model.kv_channels} in {model.num_query_groups} query groups{gates}"]
    queries = "queries without a latent" if latent.q_lora_rank is None else f"latents of {latent.q_lora_rank} for queries"
    return [
        f"{model.num_attention_heads} heads of {latent.qk_head_dim} + {latent.qk_pos_emb_head_dim} rotated channels",
        f"values of {latent.v_head_dim}, {queries}, {latent.kv_lora_rank} for keys and values",
    ]


def _scaling_words(scaling: AnyScaling | None) -> str:
    if scaling is None:
        return ""
    kind = "" if isinstance(scaling, RopeScaling) else f" ({scaling.rope_type})"
    return f"scaled by {scaling.factor:g}{kind}" if scaling.factor else f"scaled{kind}"


def _unrotated_words(model: Architecture) -> str:
    return f" but in every layer {model.no_rope_freq}, which rotates nothing" if model.no_rope_freq else ""


def _window_words(model: Architecture) -> str:
    if not model.sliding_window:
        return ""
    every = f" but in every layer {model.window_attn_skip_freq}" if model.window_attn_skip_freq else ""
    return f"window of {model.sliding_window}{every}" + (
        f", there rotary base {model.local_rotary_base:g}" if model.local_rotary_base else ""
    )


def _layer_words(model: Architecture) -> str:
    place = {"pre": "", "post": " behind the layers", "both": " before and behind the layers"}[model.norm_placement]
    gated = {"silu": "SwiGLU", "gelu_tanh": "GeGLU", "clamped_swiglu": "clamped SwiGLU"}
    plain = {"gelu_tanh": "GELU", "relu2": "squared ReLU", "xielu": "xIELU"}
    activation = (gated if model.is_gated else plain)[model.activation]
    parameters = {"weight_and_bias": "", "weight": " without biases", "none": " without parameters"}[model.layernorm_parameters]
    place += parameters + (", attention and MLP in parallel" if model.parallel_layers else "")
    return f"{model.normalization}{' times 1 + weight' if model.layernorm_zero_centered_gamma else ''}{place}, {activation}"


def _qk_norm_words(model: Architecture) -> str:
    if not model.qk_layernorm:
        return ""
    place = " behind the rotation" if model.qk_layernorm_after_rope else ""
    return "norms of queries and keys" + (" over all heads" if model.qk_layernorm_width == "all_heads" else "") + place


def _factor_words(model: Architecture) -> list[str]:
    caps = {"scores": model.attn_logit_softcapping, "logits": model.final_logit_softcapping}
    factors = {
        "embeddings times": model.embedding_multiplier,
        "layer outputs times": model.residual_multiplier,
        "logits divided by": model.logits_scaling,
        "queries, keys and values limited to": model.clip_qkv or 1,
    }
    beta = model.query_temperature_beta
    return [
        *([f"queries' temperature grows by {beta:g} log of the position"] if beta else []),
        *(f"{what} {factor:g}" for what, factor in factors.items() if factor != 1),
        *(f"{what} capped at {cap:g}" for what, cap in caps.items() if cap is not None),
    ]
