"""From options to a plan: click merges flags, environment and config file; presets and derived defaults are filled in here."""

import dataclasses
import tomllib
from typing import Any

from lt_shared import megatron_arguments, presets, storage
from lt_shared.architecture import Architecture
from lt_shared.console import BadConfig, UsageError, note
from lt_shared.manifest import Dataset, record_of
from lt_train import device, place
from lt_train.plan import Optimization, Parallelism, Plan, check, check_vocabulary
from lt_train.resume import is_finished

LONGEST_DEFAULT_SEQUENCE = 8192
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


def resolve(options: dict[str, Any], datasets: tuple[Dataset, ...]) -> Plan:
    """The checked plan. Raises UsageError or BadConfig for what cannot run."""
    architecture = _architecture(options, datasets)
    check_vocabulary(datasets, architecture.vocab_size)
    parallelism, where = _parallelism(options)
    save = options["save"]
    if save:
        storage.require_local(save, "training")
    plan = Plan(
        architecture=architecture,
        datasets=datasets,
        parallelism=parallelism,
        optimization=_optimization(options),
        seq_length=options["seq_length"] or min(architecture.max_position_embeddings, LONGEST_DEFAULT_SEQUENCE),
        micro_batch_size=options["micro_batch_size"],
        global_batch_size=options["global_batch_size"] or options["micro_batch_size"] * max(1, parallelism.data),
        train_iters=options["train_iters"],
        eval_iters=options["eval_iters"],
        eval_interval=options["eval_interval"],
        split=options["split"],
        bf16=options["bf16"],
        seed=options["seed"],
        device=where,
        save=save,
        load=options["load"],
        save_interval=options["save_interval"],
        log_interval=options["log_interval"],
        data_cache_path=options["data_cache_path"],
        plain=options["plain"],
    )
    check(plan)
    return plan


def _parallelism(options: dict[str, Any]) -> tuple[Parallelism, str]:
    where = device.resolve(options["device"])
    tensor, pipeline = options["tensor_model_parallel_size"], options["pipeline_model_parallel_size"]
    here = place.find()
    if here is not None and options["ranks"] and options["ranks"] != here.world_size:
        raise UsageError(f"--ranks {options['ranks']}, but {here.found} started {here.world_size}", "drop --ranks")
    ranks = here.world_size if here else options["ranks"] or device.default_ranks(where, tensor * pipeline)
    return Parallelism(ranks, tensor, pipeline, options["sequence_parallel"], options["use_distributed_optimizer"]), where


def _optimization(options: dict[str, Any]) -> Optimization:
    iterations = options["train_iters"]
    warmup = options["lr_warmup_iters"]
    return Optimization(
        lr=options["lr"],
        min_lr=options["lr"] / 10 if options["min_lr"] is None else options["min_lr"],
        lr_warmup_iters=iterations // 100 if warmup is None else warmup,
        lr_decay_iters=options["lr_decay_iters"] or iterations,
        weight_decay=options["weight_decay"],
        adam_beta1=options["adam_beta1"],
        adam_beta2=options["adam_beta2"],
        adam_eps=options["adam_eps"],
        clip_grad=options["clip_grad"],
    )


def _architecture(options: dict[str, Any], datasets: tuple[Dataset, ...]) -> Architecture:
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


def from_toml(path: str, known: set[str]) -> dict[str, Any]:
    """The options in a TOML file, keys with dashes or underscores. Raises BadConfig for unknown keys."""
    try:
        content = tomllib.loads(storage.read_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: not TOML: {error}") from None
    options = {key.replace("-", "_"): value for key, value in content.items()}
    for name, value in options.items():
        if not isinstance(value, str | int | float):
            raise BadConfig(f"{path}: {name} is {value!r}, expected one value")
    unknown = sorted(set(options) - known)
    if unknown:
        raise BadConfig(f"{path}: unknown options: {', '.join(unknown)}", "see lt-train --help for their names")
    return options


def as_record(plan: Plan) -> dict[str, Any]:
    """The plan as printed by --dry-run."""
    return {
        "v": 1,
        "kind": "plan",
        **dataclasses.asdict(plan),
        "datasets": [record_of(dataset) for dataset in plan.datasets],
        "parameters": plan.architecture.parameters(),
        "up_to_date": is_finished(plan),
        "padded_vocab_size": plan.padded_vocab_size,
        "tokens": plan.train_iters * plan.global_batch_size * plan.seq_length,
    }
