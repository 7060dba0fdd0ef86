"""Maximal update parametrization (muP): what Megatron-LM's options `--use-mup` and `--mup-*` change in the forward pass.

The rules come from megatron-core's TransformerConfig, from 0.19 on. The rules of training, initial weights and learning rates,
are in lt-train. With m = hidden size / base hidden size, logits are divided by m, scores are multiplied by 1 / d instead of
1 / sqrt(d), and embeddings by a constant.
"""

from collections.abc import Mapping
from typing import Any

DEFAULTS: Mapping[str, float | None] = {
    "mup_base_hidden_size": None,
    "mup_embedding_mult": 1.0,
    "mup_output_mult": 1.0,
    "mup_base_head_dim": None,
    "mup_attn_scale_power": 1.0,
}


def width_multiplier(arguments: Mapping[str, Any], hidden_size: int) -> float:
    """Return m, the width as a multiple of the base model's; 1 without a base model."""
    return hidden_size / (arguments.get("mup_base_hidden_size") or hidden_size)


def multipliers(arguments: Mapping[str, Any], hidden_size: int, head_size: int, is_latent: bool) -> dict[str, float]:
    """Return the fields of an `Architecture` that `--use-mup` sets. megatron-core has another scale in latent attention."""
    options = {**DEFAULTS, **{name: arguments[name] for name in DEFAULTS if arguments.get(name) is not None}}
    output = options["mup_output_mult"]
    fields = {
        "embedding_multiplier": options["mup_embedding_mult"],
        # megatron-core takes 1 for an option that is not set.
        "logits_scaling": width_multiplier(arguments, hidden_size) if output == 1 else 1 / output,
    }
    if not is_latent:
        fields["softmax_scale"] = (options["mup_base_head_dim"] or 1.0) ** 0.5 / head_size ** options["mup_attn_scale_power"]
    return fields
