"""The architecture: a preset or a Hugging Face config.json, single sizes changed by Megatron's flags, or flags alone."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, BadData, UsageError, note
from lt_shared.contracts.manifest import Dataset
from lt_shared.models import huggingface, megatron_arguments, presets
from lt_shared.models.architecture import LARGEST, Architecture, RopeScaling
from lt_shared.models.huggingface import rope_parameters
from lt_shared.models.rope_scaling import AnyScaling
from lt_train.config.settings.model import experts, gated_delta, latent_attention, mamba, mixer_layers, mup, sparse_attention

POSITIVE = click.IntRange(min=1)
NONE = "none"
# The parts of a model that not every model has, each with its options.
PARTS: tuple[Any, ...] = (experts, latent_attention, sparse_attention, gated_delta, mamba, mup)


def _complete_model(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    return console.names_and_files(presets.PRESETS, incomplete)


OPTIONS = console.section(
    "Model",
    click.option(
        "--model",
        shell_complete=_complete_model,
        help="Select a preset or a config.json; the options below change single sizes of it.",
    ),
    click.option("--num-layers", "--layers", type=POSITIVE, help="Set the number of transformer layers."),
    click.option("--hidden-size", type=POSITIVE, help="Set the width of the residual stream."),
    click.option("--ffn-hidden-size", type=POSITIVE, help="Set the width of the feed-forward layer."),
    click.option("--num-attention-heads", type=POSITIVE, help="Set the number of query heads."),
    click.option("--num-query-groups", type=POSITIVE, help="Set the number of key and value heads (grouped-query attention)."),
    click.option("--kv-channels", type=POSITIVE, help="Set the size of one head."),
    click.option("--max-position-embeddings", type=POSITIVE, help="Set the number of positions that the model is designed for."),
    click.option("--vocab-size", type=POSITIVE, help="Set the vocabulary size before padding; by default the data's."),
    click.option(
        "--position-embedding-type", type=click.Choice(["rope", "learned_absolute"]), help="Select how positions are encoded."
    ),
    click.option("--normalization", type=click.Choice(["RMSNorm", "LayerNorm"]), help="Select the kind of norm."),
    click.option("--norm-epsilon", type=console.FiniteRange(min=0, min_open=True), help="Set the epsilon of the norms."),
    click.option("--rotary-base", type=POSITIVE, help="Set the base of the rotary embeddings."),
    click.option(
        "--rotary-percent", type=console.FiniteRange(0, 1, min_open=True), help="Set the part of each head that is rotated."
    ),
    click.option("--no-rope-freq", type=POSITIVE, help="Rotate nothing in every layer of this number (SmolLM3)."),
    click.option("--use-rope-scaling", is_flag=True, help="Scale the rotary embeddings as Llama 3.1 does."),
    click.option(
        "--rope-scaling",
        metavar="JSON|none",
        help='Scale RoPE as in config.json: {"rope_type": "yarn", "factor": 4.0}.',
    ),
    click.option(
        "--rope-scaling-factor",
        type=console.FiniteRange(min=1),
        help="Set the factor of --use-rope-scaling; by default the preset's, or 8.",
    ),
    click.option("--swiglu", is_flag=True, default=None, help="Use gated feed-forward layers with SiLU."),
    click.option(
        "--squared-relu", is_flag=True, default=None, help="Use feed-forward layers without gates, with squared ReLU (Nemotron)."
    ),
    click.option("--disable-bias-linear", is_flag=True, default=None, help="Drop the biases of linear layers."),
    click.option("--add-qkv-bias", is_flag=True, default=None, help="Add biases to queries, keys and values only (Qwen2)."),
    click.option("--qk-layernorm", is_flag=True, default=None, help="Normalize queries and keys (Qwen3)."),
    click.option("--window-size", metavar="LEFT,0|none", help="Limit the tokens before its own that a query sees (Mistral)."),
    click.option(
        "--untie-embeddings-and-output-weights",
        is_flag=True,
        default=None,
        help="Give the output layer a weight matrix separate from the embedding's.",
    ),
    click.option("--init-method-std", type=console.FiniteRange(min=0), help="Set the standard deviation of the initial weights."),
    click.option(
        "--mtp-num-layers",
        type=click.IntRange(min=0),
        help="Set the number of layers that predict tokens after the next (DeepSeek-V3).",
    ),
)

LLAMA_STYLE = "Llama style is --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear"
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
    "rotary_percent": "rotary_percent",
    "init_method_std": "init_std",
    "add_qkv_bias": "add_qkv_bias",
    "qk_layernorm": "qk_layernorm",
    "mtp_num_layers": "mtp_num_layers",
    "no_rope_freq": "no_rope_freq",
}


def resolve_architecture(options: dict[str, Any], datasets: tuple[Dataset, ...]) -> Architecture:
    """Resolve the model options. Raises UsageError for an unknown model, BadConfig for contradictory sizes and flags."""
    base = _load_model(options["model"]) if options["model"] else _from_sizes(options)
    changes = {field: options[option] for option, field in SIZES.items() if options[option] is not None}
    if "hidden_size" in changes or "num_attention_heads" in changes:
        changes.setdefault("kv_channels", 0)
    if options["num_attention_heads"] and not options["num_query_groups"] and base.num_query_groups == base.num_attention_heads:
        changes["num_query_groups"] = options["num_attention_heads"]
    if options["untie_embeddings_and_output_weights"]:
        changes["tie_embeddings"] = False
    if options["window_size"]:
        changes["sliding_window"] = _parse_window(options["window_size"])
        if changes["sliding_window"] is None:
            changes |= {"window_attn_skip_freq": None, "local_rotary_base": None}
    if base.embedding_multiplier == base.hidden_size**0.5 and base.embedding_multiplier != 1:
        changes["embedding_multiplier"] = changes.get("hidden_size", base.hidden_size) ** 0.5
    if options["squared_relu"]:
        if base.family == "gpt":
            raise BadConfig("--squared-relu for a model with learned positions", f"drop it; {LLAMA_STYLE}")
        changes |= {"activation": "relu2", "gated_linear_unit": False}
    if base.family == "llama" and options["normalization"]:
        changes["normalization"] = options["normalization"]
    changes |= mixer_layers.changed_fields(base, changes)
    for part in PARTS:
        changes |= part.changed_fields(options, base, changes)
    changes["rope_scaling"] = _rope_scaling(options, base)
    changes["vocab_size"] = options["vocab_size"] or _data_vocabulary(datasets) or base.vocab_size
    if changes["vocab_size"] != base.vocab_size and not options["vocab_size"]:
        note(f"vocabulary of {changes['vocab_size']} from the data ({base.name} has {base.vocab_size})")
    architecture = dataclasses.replace(base, **changes)
    _check_family(options, architecture)
    experts.check(architecture)
    return architecture


def divisible_by(size: int, expert_parallel: int) -> Architecture:
    """Return a placeholder model whose sizes are all `size`, for checks of other parts. Raises BadConfig for a large size."""
    experts = size if expert_parallel > 1 else None
    return Architecture("none", "llama", size, size, size, size, size, LARGEST, LARGEST, kv_channels=size, num_experts=experts)


def _load_model(model: str) -> Architecture:
    """Return a preset, or read the architecture from a config.json or its directory."""
    path = Path(model)
    if model in presets.PRESETS or not path.exists():
        return presets.preset(model)
    file = path / "config.json" if path.is_dir() else path
    try:
        return huggingface.from_config(dict(json.loads(file.read_bytes())), file.absolute().parent.name)
    except (OSError, ValueError, TypeError) as error:
        raise BadData(f"{file}: not a model configuration: {error}") from None


def _data_vocabulary(datasets: tuple[Dataset, ...]) -> int | None:
    return max((dataset.vocab_size for dataset in datasets if dataset.vocab_size), default=None)


def _parse_window(text: str) -> int | None:
    """Convert Megatron's "LEFT,RIGHT" to the number of tokens that a query sees, including its own."""
    if text == NONE:
        return None
    before, _, after = text.partition(",")
    if not before.strip().isdigit() or after.strip() not in ("0", ""):
        raise BadConfig(f"window size {text!r} is not a number of tokens to the left and 0, like 4095,0")
    return int(before) + 1


def _rope_scaling(options: dict[str, Any], base: Architecture) -> AnyScaling | None:
    factor = options["rope_scaling_factor"]
    if options["rope_scaling"]:
        if factor or options["use_rope_scaling"]:
            raise BadConfig("--rope-scaling beside an option for Llama 3.1's scaling", "put all numbers into --rope-scaling")
        return parse_rope_scaling(options["rope_scaling"], base)
    if base.rope_scaling:
        return dataclasses.replace(base.rope_scaling, factor=factor) if factor else base.rope_scaling
    if factor and not options["use_rope_scaling"]:
        raise BadConfig(f"a rope scaling factor, but {base.name} has no rope scaling", "add --use-rope-scaling")
    return RopeScaling(factor or 8.0) if options["use_rope_scaling"] else None


def parse_rope_scaling(text: str, base: Architecture) -> AnyScaling | None:
    """Parse config.json's `rope_scaling`. If it names no original positions, the model's are used."""
    if text == NONE:
        return None
    try:
        parameters = json.loads(text)
        config = {"max_position_embeddings": base.max_position_embeddings}
        return rope_parameters.scaling_of(dict(parameters), config, "--rope-scaling")
    except (ValueError, TypeError) as error:
        raise BadConfig(
            f"--rope-scaling {text!r:.80}: {error}", 'write it as JSON: {"rope_type": "yarn", "factor": 4.0}'
        ) from None


def _from_sizes(options: dict[str, Any]) -> Architecture:
    """Build an architecture from flags alone, with Megatron's defaults for missing flags."""
    layers: Any = options["num_layers"] or mamba.count_layers(options)
    for name in ("num_layers", "hidden_size", "num_attention_heads"):
        if options[name] is None and not (name == "num_layers" and layers):
            raise UsageError(
                f"no --model and no --{name.replace('_', '-')}", "--model tiny for a trial; lt-train models lists them all"
            )
    llama = options["position_embedding_type"] == "rope"
    hidden = options["hidden_size"]
    return Architecture(
        name="custom",
        family="llama" if llama else "gpt",
        num_layers=layers,
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
    requested = {
        "position_embedding_type": options["position_embedding_type"],
        "normalization": options["normalization"],
        "swiglu": options["swiglu"],
        "add_bias_linear": False if options["disable_bias_linear"] else None,
    }
    for name, value in requested.items():
        if value is not None and value != expected[name]:
            raise BadConfig(
                f"{name} {value} does not go with the {architecture.family} family, which has {expected[name]}",
                LLAMA_STYLE,
            )
    for name in ("rotary_base", "rotary_percent", "no_rope_freq", "use_rope_scaling", "rope_scaling", "rope_scaling_factor"):
        if architecture.family == "gpt" and options[name]:
            raise BadConfig(f"--{name.replace('_', '-')} for a model with learned positions", f"drop it; {LLAMA_STYLE}")
    if architecture.family == "gpt" and options["no_position_embedding"]:
        raise BadConfig("--no-position-embedding for a model with learned positions", "add --position-embedding-type rope")
