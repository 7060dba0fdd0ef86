"""Read lt-train's options from TorchTitan's models with experts: DeepSeek-V3 and gpt-oss of its config registry.

Read against revision b5bcd76c6 of August 2026: models/deepseek_v3, models/gpt_oss, models/common/moe.py and rope.py. Until
commit 23bcf4efd of 2026-08-11 the length of training switched YaRN; `max_seq_len` in a RoPE shows such a revision.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lt_train.importers.python.values import Unknown
from lt_train.importers.torchtitan_parts import (
    ANY,
    BLOCK,
    DRAWING,
    FIELDS,
    MODEL,
    UNALIKE,
    Fields,
    absent_fields,
    class_name,
    epsilons,
    first_set,
    hides_other_documents,
    layers_of,
    mlp_width,
    part_of,
    shape,
    unread,
)

LATENT, SINKS = "DeepSeekV3Model", "GptOssModel"
MODELS = (LATENT, SINKS)
# The published model whose layers have windows, sinks and biases as TorchTitan's; options replace its sizes.
GPT_OSS = "gpt-oss-20b"
LINEAR = dict.fromkeys(["in_features", "out_features", "bias"], ANY)
FUSED_OR_NOT = ("wqkv", "wq", "wk", "wv", "wkv")
# Until July 2026 the experts and their dispatcher were one part, and until May the model had the RoPE of all layers.
MOE = dict.fromkeys(["num_experts", "routed_experts", "experts", "router", "load_balance_coeff", "shared_experts"], ANY)
EXPERTS = dict.fromkeys(["dim", "hidden_dim", "num_experts", "token_dispatcher", "use_grouped_mm"], ANY)
DISPATCHER = dict.fromkeys(
    ["num_experts", "top_k", "hidden_dim", "num_max_tokens_per_rank", "cudagraphable", "pad_multiple", "dtype", "device"], ANY
)
COMMON: Fields = {
    **FIELDS,
    "MoE": MOE,
    "RoutedExperts": dict.fromkeys(["inner_experts", "token_dispatcher"], ANY),
    "GroupedExperts": EXPERTS,
    "TokenChoiceTopKRouter": {
        **dict.fromkeys(["num_experts", "gate", "num_expert_groups", "num_limited_groups", "top_k", "route_norm"], ANY),
        "score_func": ("softmax", "sigmoid"),
        "route_scale": ANY,
    },
    "LocalTokenDispatcher": DISPATCHER,
    "AllToAllTokenDispatcher": DISPATCHER,
    "DeepEPTokenDispatcher": DISPATCHER,
    "MinimalAsyncEPTokenDispatcher": DISPATCHER,
    # Buffers below the worst case drop tokens.
    "HybridEPTokenDispatcher": {**DISPATCHER, "non_blocking_capacity_factor": (1.0,)},
}
HEADS = dict.fromkeys(["n_heads", "dim", "wo", "rope", "inner_attention"], ANY)
OF_LATENT: Fields = {
    **COMMON,
    "DeepSeekV3Model": MODEL,
    "DeepSeekV3TransformerBlock": {**BLOCK, "moe": ANY},
    "Attention": {
        **HEADS,
        **dict.fromkeys(
            ["wq", "wq_a", "wq_b", "wkv_a", "wkv_b", "q_lora_rank", "kv_lora_rank", "q_norm", "kv_norm", "mscale"], ANY
        ),
        **dict.fromkeys(["qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"], ANY),
    },
}
OF_SINKS: Fields = {
    **COMMON,
    "GptOssModel": {name: allowed for name, allowed in MODEL.items() if name != "enable_weight_tying"},
    "GptOssTransformerBlock": {**BLOCK, "moe": ANY},
    "Attention": {**HEADS, **dict.fromkeys(["n_kv_heads", "head_dim", "qkv_linear", "sliding_window_size"], ANY)},
    "GptOssMoE": MOE,
    "GptOssGroupedExperts": {**EXPERTS, "swiglu_limit": (7.0,)},
    # `_absent_biases` reads which ones have biases.
    "Linear": LINEAR,
    "ScaledBiasRowwiseLinear": LINEAR,
    # `_absent_window` compares it with the layer's window.
    "VarlenAttention": {"window_size": ANY},
}

# Fields with defaults that decide the run. A file alone, without TorchTitan's repository, may leave them out.
NEEDED = {
    "MoE": ("load_balance_coeff", "shared_experts"),
    "GptOssMoE": ("load_balance_coeff",),
    "GptOssGroupedExperts": ("swiglu_limit",),
    "TokenChoiceTopKRouter": ("num_expert_groups", "num_limited_groups", "top_k", "score_func", "route_norm", "route_scale"),
    "RMSNorm": ("eps",),
}
NEEDED_BY_ATTENTION = {
    LATENT: ("q_lora_rank", "mscale", "rope", "inner_attention"),
    SINKS: ("sliding_window_size", "rope", "inner_attention"),
}
NEEDED_BY_YARN = ("rope_factor", "original_seq_len", "beta_fast", "beta_slow", "truncate")


def options_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return lt-train's options of a model with experts. Values that only a run would show are Unknown."""
    layers = layers_of(model)
    with_experts = next((layer for layer in layers if part_of(layer, "moe")), {})
    first = layers[0] if layers else {}
    attention, moe = part_of(first, "attention"), part_of(with_experts, "moe")
    rope = part_of(attention, "rope") or part_of(model, "rope")
    inner = part_of(part_of(moe, "routed_experts"), "inner_experts") or part_of(moe, "experts")
    required = {
        "num_layers": len(layers) or unread(model, "layers"),
        "hidden_size": model.get("dim"),
        "ffn_hidden_size": first_set(mlp_width(part_of(first, "feed_forward")), inner.get("hidden_dim")),
        "num_attention_heads": attention.get("n_heads"),
        "vocab_size": first_set(part_of(model, "lm_head").get("out_features"), model.get("vocab_size")),
        "max_position_embeddings": first_set(rope.get("max_context_length"), rope.get("max_seq_len")),
        "norm_epsilon": part_of(model, "norm").get("eps"),
        "rotary_base": rope.get("theta"),
        "untie_embeddings_and_output_weights": model.get("enable_weight_tying") is not True,
    }
    optional: dict[str, Any] = {}
    if class_name(model) == LATENT:
        required |= {"multi_latent_attention": True, "kv_lora_rank": attention.get("kv_lora_rank")}
        required |= {"qk_head_dim": attention.get("qk_nope_head_dim"), "v_head_dim": attention.get("v_head_dim")}
        required["qk_pos_emb_head_dim"] = attention.get("qk_rope_head_dim")
        optional |= {"q_lora_rank": attention.get("q_lora_rank") or None, "rope_scaling": _yarn(rope, attention.get("mscale"))}
    else:
        required |= {"model": GPT_OSS, "kv_channels": attention.get("head_dim"), "num_query_groups": attention.get("n_kv_heads")}
        window = _window(layers)
        optional["window_size"] = f"{window - 1},0" if isinstance(window, int) else window
        required["rope_scaling"] = _yarn(rope) or "none"
    if moe:
        required |= _experts(moe, inner)
        shared = part_of(moe, "shared_experts")
        optional["moe_shared_expert_intermediate_size"] = mlp_width(shared)
        optional |= _groups(part_of(moe, "router"))
        number = layers.index(with_experts)
        if number:
            required |= {"moe_layer_freq": f"([0]*{number}+[1]*{len(layers) - number})"}
            required["moe_ffn_hidden_size"] = inner.get("hidden_dim")
    if hides_other_documents(attention):
        required |= {"reset_position_ids": True, "reset_attention_mask": True}
    options = {name: unread(model, name) if value is None else value for name, value in required.items()}
    return options | {name: value for name, value in optional.items() if value is not None}


def _experts(moe: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    router, rate = part_of(moe, "router"), moe.get("load_balance_coeff")
    score = router.get("score_func")
    experts: dict[str, Any] = {
        "num_experts": first_set(router.get("num_experts"), inner.get("num_experts")),
        "moe_router_topk": router.get("top_k"),
        "moe_router_score_function": score,
        "moe_router_topk_scaling_factor": router.get("route_scale"),
        # TorchTitan balances by biases alone.
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
    }
    if score == "softmax":
        # The softmax of the chosen logits is the softmax of all, divided by the sum of the chosen.
        experts["moe_router_pre_softmax"] = router.get("route_norm") is not True
    elif rate is not None:
        # TorchTitan also subtracts the mean from the steps of the biases, which changes no choice.
        experts |= {"moe_router_enable_expert_bias": True, "moe_router_bias_update_rate": rate}
    return experts


def _groups(router: Mapping[str, Any]) -> dict[str, Any]:
    groups = router.get("num_expert_groups")
    limited = router.get("num_limited_groups") if groups is not None else None
    return {"moe_router_num_groups": groups, "moe_router_group_topk": limited}


def _yarn(rope: Mapping[str, Any], score_scale: Any = None) -> Any:
    """Return the JSON of --rope-scaling, or None without a scaling.

    TorchTitan multiplies attention scores by (0.1 m log(factor) + 1)^2. With `score_scale` m, of latent attention, both
    multipliers of config.json are m; gpt-oss has the multipliers of YaRN's paper, which are the same for m = 1.
    """
    factor = rope.get("rope_factor")
    if rope.get("scaling") != "yarn" or (isinstance(factor, int | float) and factor <= 1):
        return None
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": rope.get("original_seq_len"),
        "beta_fast": rope.get("beta_fast"),
        "beta_slow": rope.get("beta_slow"),
        "truncate": rope.get("truncate"),
    }
    if score_scale is not None:
        scaling |= {"mscale": score_scale, "mscale_all_dim": score_scale}
    unknown = next((value for value in scaling.values() if isinstance(value, Unknown)), None)
    return unknown or json.dumps({name: value for name, value in scaling.items() if value is not None})


def latent_epsilon(model: Mapping[str, Any]) -> Any:
    """Return the epsilon in the norms of the latents, or None without latents."""
    layers = layers_of(model)
    norm = part_of(part_of(layers[0] if layers else {}, "attention"), "kv_norm")
    return norm.get("eps") if class_name(model) == LATENT else None


def absent_parts(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a model with experts that lt-train has no option for: their dotted names and values."""
    layers, is_latent = layers_of(model), class_name(model) == LATENT
    fields = OF_LATENT if is_latent else OF_SINKS
    parts = dict(absent_fields({name: part for name, part in model.items() if name != "layers"}, "", fields, _absent_yarn))
    parts |= _missing(part_of(model, "norm"), "norm.", NEEDED)
    dense = next((number for number, layer in enumerate(layers) if part_of(layer, "moe")), len(layers))
    needed = NEEDED | {"Attention": tuple(field for field in NEEDED_BY_ATTENTION[class_name(model)] if field not in model)}
    for number in {0, min(dense, len(layers) - 1)} if layers else ():
        name = f"layers.{number}."
        parts |= absent_fields(layers[number], name, fields, _absent_yarn)
        parts |= _missing(layers[number], name, needed)
        parts |= _absent_routing(part_of(layers[number], "moe"), f"{name}moe.")
    if not is_latent:
        for number, layer in enumerate(layers):
            window = _window(layers) if number % 2 == 0 else None
            parts |= _absent_window(part_of(layer, "attention"), f"layers.{number}.attention.", window)
        parts |= _absent_biases(model, layers[0] if layers else {})
    kinds = [_kind(layer, is_latent) for layer in layers]
    for number in range(len(layers)):
        if kinds[number] != kinds[0 if number < dense else dense]:
            parts[f"layers.{number}"] = UNALIKE
            break
    norms = {
        str(epsilon) for part in (model, *({**layer, "attention": None} for layer in layers[:1])) for epsilon in epsilons(part)
    }
    if len(norms) > 1:
        parts["layers.0.norm_eps"] = f"norms with {' and '.join(sorted(norms))}"
    return parts


def _missing(part: Mapping[str, Any], name: str, needed: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, Any]]:
    """Yield the fields that `part` or a part of it leaves to defaults, as Unknown."""
    kind = class_name(part)
    fields = needed.get(kind, ())
    if kind.endswith("RoPE"):
        # `_absent_yarn` names YaRN of other revisions.
        is_yarn = part.get("scaling") == "yarn" and "max_context_length" in part
        fields = ("theta", "scaling", *(NEEDED_BY_YARN if is_yarn else ()))
    for field in fields:
        if field not in part:
            yield f"{name}{field}", Unknown("its default stands in TorchTitan's repository, which is not beside the file", field)
    for field, value in part.items():
        if isinstance(value, Mapping) and "_target_" in value and field not in DRAWING:
            yield from _missing(value, f"{name}{field}.", needed)


def _kind(layer: Mapping[str, Any], is_latent: bool) -> Any:
    """Return what decides the computation of a layer. Windows of gpt-oss are compared by `_absent_window`."""
    attention = part_of(layer, "attention")
    if not is_latent:
        attention = {name: part for name, part in attention.items() if name not in ("sliding_window_size", "inner_attention")}
    return shape({**layer, "attention": {**attention, "backend": class_name(part_of(layer, "attention").get("inner_attention"))}})


def _absent_yarn(rope: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """Yield a scaling other than YaRN, and YaRN of revisions that switched it by the length of training."""
    scaling = rope.get("scaling")
    if scaling not in ("none", "yarn", None):
        yield f"{name}scaling", scaling
    elif scaling == "yarn" and "max_context_length" not in rope:
        yield f"{name}max_seq_len", rope.get("max_seq_len")


def _absent_routing(moe: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """Yield what megatron-core's router computes otherwise."""
    router, rate = part_of(moe, "router"), moe.get("load_balance_coeff")
    is_softmax, groups, limited = (
        router.get("score_func") == "softmax",
        router.get("num_expert_groups"),
        router.get("num_limited_groups"),
    )
    if is_softmax and rate is not None:
        yield f"{name}load_balance_coeff", rate
    is_normed = router.get("route_norm")
    # megatron-core always norms sigmoids, and scores groups by logits if it norms a softmax.
    if moe and (is_normed is not True if not is_softmax else bool(is_normed) and groups is not None):
        yield f"{name}router.route_norm", is_normed
    top_k = router.get("top_k")
    best = top_k // limited if isinstance(top_k, int) and isinstance(limited, int) and limited > 0 else None
    # TorchTitan sums the two best scores of a group, megatron-core the best topk / group_topk.
    if groups is not None and best != 2:
        yield f"{name}router.num_limited_groups", limited


def _absent_biases(model: Mapping[str, Any], layer: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield a bias that gpt-oss has not, and one that is missing."""
    attention = part_of(layer, "attention")
    biased = {
        f"attention.qkv_linear.{name}": part for name, part in part_of(attention, "qkv_linear").items() if name in FUSED_OR_NOT
    }
    biased |= {"attention.wo": attention.get("wo"), "moe.router.gate": part_of(part_of(layer, "moe"), "router").get("gate")}
    for name, part in biased.items():
        if isinstance(part, Mapping) and part.get("bias") is not True:
            yield f"layers.0.{name}.bias", part.get("bias")
    if part_of(model, "lm_head").get("bias"):
        yield "lm_head.bias", True


def _window(layers: list[dict[str, Any]]) -> Any:
    """Return the window of gpt-oss, which the first layer and every other one have."""
    return part_of(layers[0] if layers else {}, "attention").get("sliding_window_size")


def _absent_window(attention: Mapping[str, Any], name: str, expected: Any) -> Iterator[tuple[str, Any]]:
    """Yield a window that is not the `expected` one, or None of a first layer."""
    window, backend = attention.get("sliding_window_size"), part_of(attention, "inner_attention")
    if window != expected or (name == "layers.0.attention." and window is None):
        yield f"{name}sliding_window_size", window
    elif class_name(backend) == "VarlenAttention":
        # FlexAttention takes the window from the mask, varlen attention from its own field.
        size, left = backend.get("window_size"), window - 1 if isinstance(window, int) else -1
        if not isinstance(size, list | tuple) or tuple(size) != (left, 0):
            yield f"{name}inner_attention.window_size", size
