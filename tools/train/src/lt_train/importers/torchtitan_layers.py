"""Read lt-train's options from the model object of TorchTitan's config registry, and find the parts that lt-train has not.

Read against the revisions 9810191bb, dafd87a90, 61c010fcb and b5bcd76c6 of February to August 2026.
"""

from collections.abc import Mapping
from typing import Any

from lt_train.importers.torchtitan_parts import (
    UNALIKE,
    absent_fields,
    epsilons,
    first_set,
    hides_other_documents,
    layers_of,
    mlp_width,
    part_of,
    shape,
    unread,
)

DENSE = ("Llama3Model", "Qwen3Model")


def options_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return lt-train's options of a dense model. Values that only a run would show are Unknown."""
    layers = layers_of(model)
    first = layers[0] if layers else {}
    attention, mlp = part_of(first, "attention"), part_of(first, "feed_forward")
    linear = part_of(attention, "qkv_linear")
    rope = part_of(attention, "rope") or part_of(model, "rope")
    output = part_of(model, "lm_head") or part_of(model, "output")
    heads = attention.get("n_heads")
    options = {
        "num_layers": len(layers) if layers else unread(model, "layers"),
        "hidden_size": model.get("dim"),
        "ffn_hidden_size": mlp_width(mlp),
        "num_attention_heads": heads,
        "num_query_groups": first_set(attention.get("n_kv_heads"), heads),
        "kv_channels": first_set(attention.get("head_dim"), linear.get("head_dim"), rope.get("dim")),
        "vocab_size": first_set(output.get("out_features"), model.get("vocab_size")),
        "max_position_embeddings": first_set(rope.get("max_context_length"), rope.get("max_seq_len")),
        "norm_epsilon": first_set(part_of(model, "norm").get("eps"), model.get("norm_eps")),
        "rotary_base": rope.get("theta"),
        "qk_layernorm": attention.get("qk_norm") not in (None, False),
        "untie_embeddings_and_output_weights": model.get("enable_weight_tying") is not True,
    }
    if rope.get("scaling") == "llama":
        options |= {"use_rope_scaling": True, "rope_scaling_factor": rope.get("scaling_factor")}
    if hides_other_documents(attention):
        options |= {"reset_position_ids": True, "reset_attention_mask": True}
    return {name: unread(model, name) if value is None else value for name, value in options.items()}


def absent_parts(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a dense model that lt-train has no option for: their dotted names and values."""
    layers = layers_of(model)
    parts = dict(absent_fields({name: part for name, part in model.items() if name not in ("layers", "layer", "n_layers")}, ""))
    if not layers:
        return parts
    parts |= absent_fields(layers[0], "layers.0.")
    for number, layer in enumerate(layers):
        if shape(layer) != shape(layers[0]):
            parts[f"layers.{number}"] = UNALIKE
            break
    norms = {str(epsilon) for part in (model, layers[0]) for epsilon in epsilons(part)}
    if len(norms) > 1:
        parts["layers.0.norm_eps"] = f"norms with {' and '.join(sorted(norms))}"
    return parts
