"""The parts of a model object of TorchTitan's config registry: their classes, fields and shapes; fields that lt-train has not."""

from collections.abc import Callable, Iterator, Mapping
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
Fields = Mapping[str, Mapping[str, tuple[Any, ...] | None]]
# For each class the fields that are read here or decide nothing, and the values of those that lt-train has no option for.
FIELDS: Fields = {
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
# Attention that lets no token see another document of a packed sequence.
MASKED = ("FlexAttention", "VarlenAttention")
UNALIKE = "unlike those of the first layer"


def layers_of(model: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the layers. Before April 2026 a model had one description for all of its layers."""
    layers, layer, count = model.get("layers"), model.get("layer"), model.get("n_layers")
    if isinstance(layers, list):
        return layers if all(isinstance(layer, dict) for layer in layers) else []
    return [layer] * count if isinstance(layer, dict) and isinstance(count, int) and 0 < count < 10_000 else []


def part_of(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = parent.get(name)
    return part if isinstance(part, Mapping) else {}


def first_set(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def unread(model: Mapping[str, Any], name: str) -> Unknown:
    cause = model.get(name)
    return cause if isinstance(cause, Unknown) else Unknown(f"{class_name(model)} has none where lt-train looks for it", name)


def mlp_width(mlp: Mapping[str, Any]) -> Any:
    """Return the width of an MLP, whose first two matrices may be one."""
    width, both = part_of(mlp, "w1").get("out_features"), part_of(mlp, "w13").get("out_features")
    return first_set(width, both // 2 if isinstance(both, int) else both, mlp.get("hidden_dim"))


def absent_llama_scaling(rope: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """Yield the scaling of rotary positions if it differs from Llama 3.1's scaling, which lt-train has with one set of bounds."""
    scaling = rope.get("scaling")
    if scaling in ("none", None):
        return
    if scaling != "llama":
        yield f"{name}scaling", scaling
    for field, value in (("low_freq_factor", 1.0), ("high_freq_factor", 4.0), ("original_max_position_embeddings", 8192)):
        if scaling == "llama" and rope.get(field) != value:
            yield f"{name}{field}", rope.get(field)


def absent_fields(
    part: Mapping[str, Any],
    name: str,
    fields: Fields = FIELDS,
    absent_scaling: Callable[[Mapping[str, Any], str], Iterator[tuple[str, Any]]] = absent_llama_scaling,
) -> Iterator[tuple[str, Any]]:
    """Yield each field of an object and of its parts that no class in `fields` has, or whose value lt-train has not.

    `absent_scaling` yields those of rotary positions.
    """
    kind = class_name(part)
    if kind.endswith("RoPE"):
        yield from absent_scaling(part, name)
        return
    of_class = fields.get(kind)
    if of_class is None:
        yield name.removesuffix("."), kind or "no object"
        return
    for field, value in part.items():
        allowed = of_class.get(field)
        if field in DRAWING or (isinstance(value, Unknown) and field in of_class and allowed is ANY):
            continue
        if isinstance(value, Unknown):
            yield f"{name}{field}", value
        elif (field not in of_class and value not in OFF) or (allowed is not ANY and value not in (*allowed, None)):
            yield f"{name}{field}", _as_told(value)
        elif isinstance(value, dict) and class_name(value) != "_DEFAULT_SPARSE_BLOCK_SIZE" and "_target_" in value:
            yield from absent_fields(value, f"{name}{field}.", fields, absent_scaling)


def _as_told(value: Any) -> Any:
    """Return a value with objects replaced by the names of their classes."""
    if isinstance(value, list):
        return [_as_told(entry) for entry in value]
    return class_name(value) if isinstance(value, dict) else value


def epsilons(part: Any) -> Iterator[Any]:
    """Yield the epsilon of each norm in an object, except in its lists."""
    if isinstance(part, Mapping):
        for field, value in part.items():
            if field in ("eps", "norm_eps"):
                yield value
            elif field != "layer":
                yield from epsilons(value)


def hides_other_documents(attention: Mapping[str, Any]) -> bool:
    """Whether no token sees another document of a packed sequence."""
    mask = attention.get("mask_type")
    return mask == "block_causal" or (mask is None and class_name(part_of(attention, "inner_attention")) in MASKED)


def shape(layer: Any) -> Any:
    """Return what decides the computation of a layer: its parts without the functions that draw first weights."""
    if not isinstance(layer, dict):
        return str(layer) if isinstance(layer, Unknown) else layer
    return {name: shape(part) for name, part in layer.items() if name not in ("param_init", "layer_id")}


def class_name(part: Any) -> str:
    """Return the name of an object's class, without its module and without the suffix of another kernel."""
    name = str(part.get("_target_", "") if isinstance(part, Mapping) else part)
    name = name.removesuffix(".Config").rpartition(".")[2]
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name
