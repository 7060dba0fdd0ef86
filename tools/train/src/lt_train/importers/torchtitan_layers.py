"""Read lt-train's options from the model object of TorchTitan's config registry, and find the parts that lt-train has not.

Read against the revisions 9810191bb, dafd87a90, 61c010fcb and b5bcd76c6 of February to August 2026.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from lt_train.importers.effects import OFF
from lt_train.importers.python.values import Unknown

# Classes that compute the same with other kernels, or with low precision, which converters of the model stand for.
PREFIXES = ("GraphTrainer", "AllGather", "Float8", "MXFP8", "NVFP4", "LoRA")
ANY = None
MODEL = dict.fromkeys(
    ("dim", "vocab_size", "lm_head", "output", "tok_embeddings", "norm", "norm_eps", "rope", "enable_weight_tying"), ANY
)
BLOCK = dict.fromkeys(["attention", "feed_forward", "attention_norm", "ffn_norm", "norm_eps", "depth_init"], ANY)
MLP = dict.fromkeys(["w1", "w2", "w3", "w13", "hidden_dim"], ANY)
QKV = dict.fromkeys(["head_dim", "n_heads", "n_kv_heads", "wq", "wk", "wv", "wkv", "wqkv"], ANY)
# For each class the fields that are read here or decide nothing, and the values of those that lt-train has no option for.
FIELDS: dict[str, dict[str, tuple[Any, ...] | None]] = {
    "Llama3Model": MODEL,
    "Qwen3Model": MODEL,
    "Llama3TransformerBlock": BLOCK,
    "Qwen3TransformerBlock": BLOCK,
    "GQAttention": {
        **QKV,
        **dict.fromkeys(["inner_attention", "dim", "qkv_linear", "wo", "qk_norm", "rope", "norm_eps", "attn_backend"], ANY),
        "use_rope": (True,),
        "rope_backend": ("complex", "cos_sin"),
        "mask_type": ("causal", "block_causal"),
        # With the other mask, positions began to count from 0 in each document a month after the field came.
        "attn_mask_type": ("causal",),
    },
    "QKVLinear": QKV,
    "FusedQKVLinear": QKV,
    "FeedForward": MLP,
    "FusedFeedForward": MLP,
    "Linear": dict.fromkeys(["in_features", "out_features"], ANY),
    "RowParallelLinear": dict.fromkeys(["in_features", "out_features"], ANY),
    "Embedding": dict.fromkeys(["num_embeddings", "embedding_dim"], ANY),
    "RMSNorm": {"normalized_shape": ANY, "eps": ANY, "elementwise_affine": (True,)},
    "ScaledDotProductAttention": {},
    "FlexAttention": dict.fromkeys(["block_size", "kernel_options"], ANY),
    "VarlenAttention": {"window_size": ([-1, 0], (-1, 0))},
}
DRAWING = ("_target_", "param_init", "sharding_config")
DENSE = ("Llama3Model", "Qwen3Model")
# Attention that lets no token see another document of a packed sequence.
MASKED = ("FlexAttention", "VarlenAttention")
UNALIKE = "unlike those of the first layer"


def class_name(part: Any) -> str:
    """Return the name of an object's class, without its module and what makes another kernel of it."""
    name = str(part.get("_target_", "") if isinstance(part, Mapping) else part)
    name = name.removesuffix(".Config").rpartition(".")[2]
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def is_dense(model: Mapping[str, Any]) -> bool:
    """Whether the model is one like Llama 3 or Qwen 3."""
    return class_name(model) in DENSE


def options_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return lt-train's options of a dense model. Values that only a run would show are Unknown."""
    layers = _layers(model)
    first = layers[0] if layers else {}
    attention, mlp = _part(first, "attention"), _part(first, "feed_forward")
    linear = _part(attention, "qkv_linear")
    rope = _part(attention, "rope") or _part(model, "rope")
    output = _part(model, "lm_head") or _part(model, "output")
    heads = attention.get("n_heads")
    options = {
        "num_layers": len(layers) if layers else _unread(model, "layers"),
        "hidden_size": model.get("dim"),
        "ffn_hidden_size": _ffn_hidden_size(mlp),
        "num_attention_heads": heads,
        "num_query_groups": _either(attention.get("n_kv_heads"), heads),
        "kv_channels": _either(attention.get("head_dim"), linear.get("head_dim"), rope.get("dim")),
        "vocab_size": _either(output.get("out_features"), model.get("vocab_size")),
        "max_position_embeddings": _either(rope.get("max_context_length"), rope.get("max_seq_len")),
        "norm_epsilon": _either(_part(model, "norm").get("eps"), model.get("norm_eps")),
        "rotary_base": rope.get("theta"),
        "qk_layernorm": attention.get("qk_norm") not in (None, False),
        "untie_embeddings_and_output_weights": model.get("enable_weight_tying") is not True,
    }
    if rope.get("scaling") == "llama":
        options |= {"use_rope_scaling": True, "rope_scaling_factor": rope.get("scaling_factor")}
    mask = attention.get("mask_type")
    if mask == "block_causal" or (mask is None and class_name(_part(attention, "inner_attention")) in MASKED):
        options |= {"reset_position_ids": True, "reset_attention_mask": True}
    return {name: _unread(model, name) if value is None else value for name, value in options.items()}


def absent_parts(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a dense model that lt-train has no option for: their dotted names and values."""
    layers = _layers(model)
    parts = dict(_absent({name: part for name, part in model.items() if name not in ("layers", "layer", "n_layers")}, ""))
    if not layers:
        return parts
    parts |= _absent(layers[0], "layers.0.")
    for number, layer in enumerate(layers):
        if _shape(layer) != _shape(layers[0]):
            parts[f"layers.{number}"] = UNALIKE
            break
    epsilons = {str(epsilon) for part in (model, layers[0]) for epsilon in _epsilons(part)}
    if len(epsilons) > 1:
        parts["layers.0.norm_eps"] = f"norms with {' and '.join(sorted(epsilons))}"
    return parts


def _layers(model: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the layers. Before April 2026 a model had one description for all of its layers."""
    layers, layer, count = model.get("layers"), model.get("layer"), model.get("n_layers")
    if isinstance(layers, list):
        return layers if all(isinstance(layer, dict) for layer in layers) else []
    return [layer] * count if isinstance(layer, dict) and isinstance(count, int) and 0 < count < 10_000 else []


def _part(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = parent.get(name)
    return part if isinstance(part, Mapping) else {}


def _either(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _unread(model: Mapping[str, Any], name: str) -> Unknown:
    cause = model.get(name)
    return cause if isinstance(cause, Unknown) else Unknown(f"{class_name(model)} has none where lt-train looks for it", name)


def _ffn_hidden_size(mlp: Mapping[str, Any]) -> Any:
    """Return the width of an MLP, whose first two matrices may be one."""
    width, both = _part(mlp, "w1").get("out_features"), _part(mlp, "w13").get("out_features")
    return _either(width, both // 2 if isinstance(both, int) else both, mlp.get("hidden_dim"))


def _absent(part: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """Yield each field of an object and of its parts that no known class has, or whose value lt-train has not."""
    kind = class_name(part)
    if kind.endswith("RoPE"):
        yield from _absent_rope(part, name)
        return
    fields = FIELDS.get(kind)
    if fields is None:
        yield name.removesuffix("."), kind or "no object"
        return
    for field, value in part.items():
        allowed = fields.get(field)
        if field in DRAWING or isinstance(value, Unknown):
            continue
        if (field not in fields and value not in OFF) or (allowed is not ANY and value not in (*allowed, None)):
            yield f"{name}{field}", class_name(value) if isinstance(value, dict) else value
        elif isinstance(value, dict) and class_name(value) != "_DEFAULT_SPARSE_BLOCK_SIZE" and "_target_" in value:
            yield from _absent(value, f"{name}{field}.")


def _absent_rope(rope: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """Yield the scaling of rotary positions if it is not that of Llama 3.1, which lt-train has with one set of bounds."""
    scaling = rope.get("scaling")
    if scaling in ("none", None):
        return
    if scaling != "llama":
        yield f"{name}scaling", scaling
    for field, value in (("low_freq_factor", 1.0), ("high_freq_factor", 4.0), ("original_max_position_embeddings", 8192)):
        if scaling == "llama" and rope.get(field) != value:
            yield f"{name}{field}", rope.get(field)


def _epsilons(part: Any) -> Iterator[Any]:
    """Yield the epsilon of each norm in an object, except in its lists."""
    if isinstance(part, Mapping):
        for field, value in part.items():
            if field in ("eps", "norm_eps"):
                yield value
            elif field != "layer":
                yield from _epsilons(value)


def _shape(layer: Any) -> Any:
    """Return what decides the computation of a layer: its parts without the functions that draw first weights."""
    if not isinstance(layer, dict):
        return str(layer) if isinstance(layer, Unknown) else layer
    return {name: _shape(part) for name, part in layer.items() if name not in ("param_init", "layer_id")}
