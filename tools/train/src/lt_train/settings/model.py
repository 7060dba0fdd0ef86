"""The architecture: a preset, single sizes changed by Megatron's flags, or flags alone."""

import dataclasses
from typing import Any

import click

from lt_shared import console, megatron_arguments, presets
from lt_shared.architecture import Architecture
from lt_shared.console import BadConfig, UsageError, note
from lt_shared.manifest import Dataset

POSITIVE = click.IntRange(min=1)

OPTIONS = console.section(
    "Model",
    click.option("--model", help="A named architecture; single sizes can be changed with the options below."),
    click.option("--num-layers", type=POSITIVE, help="Transformer layers."),
    click.option("--hidden-size", type=POSITIVE, help="Width of the residual stream."),
    click.option("--ffn-hidden-size", type=POSITIVE, help="Width of the feed-forward layer."),
    click.option("--num-attention-heads", type=POSITIVE, help="Query heads."),
    click.option("--num-query-groups", type=POSITIVE, help="Key and value heads (grouped-query attention)."),
    click.option("--kv-channels", type=POSITIVE, help="Size of one head."),
    click.option("--max-position-embeddings", type=POSITIVE, help="Positions that the model is made for."),
    click.option("--vocab-size", type=POSITIVE, help="Vocabulary before padding; by default the data's."),
    click.option("--position-embedding-type", type=click.Choice(["rope", "learned_absolute"]), help="How positions are encoded."),
    click.option("--normalization", type=click.Choice(["RMSNorm", "LayerNorm"]), help="Kind of norm."),
    click.option("--norm-epsilon", type=click.FloatRange(min=0, min_open=True), help="Epsilon of the norms."),
    click.option("--rotary-base", type=click.IntRange(min=1), help="Base of the rotary embeddings."),
    click.option("--swiglu", is_flag=True, default=None, help="Gated feed-forward layers with SiLU."),
    click.option("--disable-bias-linear", is_flag=True, default=None, help="No biases in linear layers."),
    click.option("--untie-embeddings-and-output-weights", is_flag=True, default=None, help="Separate output matrix."),
    click.option("--init-method-std", type=click.FloatRange(min=0), help="Standard deviation of the initial weights."),
)

SIZES = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "ffn_hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_query_groups": "num_query_groups",
    "kv_channels": "kv_channels",
    "max_position_embeddings": "max_position_embeddings",
    "norm_epsilon": "norm_epsilon",
    "rotary_base": "rotary_base",
    "init_method_std": "init_std",
}


def resolve(options: dict[str, Any], datasets: tuple[Dataset, ...]) -> Architecture:
    base = presets.preset(options["model"]) if options["model"] else _from_sizes(options)
    changes = {field: options[option] for option, field in SIZES.items() if options[option] is not None}
    if "hidden_size" in changes or "num_attention_heads" in changes:
        changes.setdefault("kv_channels", 0)
    if options["num_attention_heads"] and not options["num_query_groups"] and base.num_query_groups == base.num_attention_heads:
        changes["num_query_groups"] = options["num_attention_heads"]
    if options["untie_embeddings_and_output_weights"]:
        changes["tie_embeddings"] = False
    changes["vocab_size"] = options["vocab_size"] or _data_vocabulary(datasets) or base.vocab_size
    if changes["vocab_size"] != base.vocab_size and not options["vocab_size"]:
        note(f"vocabulary of {changes['vocab_size']} from the data ({base.name} has {base.vocab_size})")
    architecture = dataclasses.replace(base, **changes)
    _check_family(options, architecture)
    return architecture


def _data_vocabulary(datasets: tuple[Dataset, ...]) -> int | None:
    return max((dataset.vocab_size for dataset in datasets if dataset.vocab_size), default=None)


def _from_sizes(options: dict[str, Any]) -> Architecture:
    """An architecture without a preset, with Megatron's defaults for what is not given."""
    for name in ("num_layers", "hidden_size", "num_attention_heads"):
        if options[name] is None:
            raise UsageError(f"no --model and no --{name.replace('_', '-')}", f"models: {', '.join(presets.PRESETS)}")
    llama = options["position_embedding_type"] == "rope"
    hidden = options["hidden_size"]
    return Architecture(
        name="custom",
        family="llama" if llama else "gpt",
        num_layers=options["num_layers"],
        hidden_size=hidden,
        ffn_hidden_size=options["ffn_hidden_size"] or (int(4 * hidden * 2 / 3 / 64) * 64 if llama else 4 * hidden),
        num_attention_heads=options["num_attention_heads"],
        num_query_groups=options["num_query_groups"] or options["num_attention_heads"],
        kv_channels=options["kv_channels"] or 0,
        vocab_size=options["vocab_size"] or 50257,
        max_position_embeddings=options["max_position_embeddings"] or options["seq_length"] or 2048,
        tie_embeddings=not options["untie_embeddings_and_output_weights"],
    )


def _check_family(options: dict[str, Any], architecture: Architecture) -> None:
    """Refuse a mixture of the two families. Raises BadConfig."""
    expected = megatron_arguments.to_arguments(architecture)
    asked = {
        "position_embedding_type": options["position_embedding_type"],
        "normalization": options["normalization"],
        "swiglu": options["swiglu"],
        "add_bias_linear": False if options["disable_bias_linear"] else None,
    }
    for name, value in asked.items():
        if value is not None and value != expected[name]:
            raise BadConfig(
                f"{name} {value} does not go with the {architecture.family} family, which has {expected[name]}",
                "Llama style is --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear",
            )
