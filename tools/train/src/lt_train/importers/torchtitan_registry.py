"""Turn the Trainer.Config of TorchTitan's config registry (since 2026) into the keys of the TOML files that it had before."""

from collections.abc import Mapping
from typing import Any

from lt_train.importers import torchtitan_experts, torchtitan_layers
from lt_train.importers.python.configuration import Configuration
from lt_train.importers.python.published_models import CONVERTERS
from lt_train.importers.python.values import Instance, Unknown
from lt_train.importers.torchtitan import LATENT_EPSILON, OTHER_PROGRAM, PARTS, SIZES
from lt_train.importers.torchtitan_parts import class_name
from lt_train.importers.upstream.rows import options
from lt_train.importers.upstream.torchtitan_keys import ROWS

TRAINERS = ("torchtitan.trainer.Trainer.Config", "torchtitan.experiments.graph_trainer.trainer.GraphTrainer.Config")
# Sections under the names that they had.
MOVED = {"profiler": "profiling", "validator": "validation"}
# Sections that say where data, tokens and reports come from, or how a step is compiled.
LEFT_OUT = ("_target_", "model_spec", "dataloader", "tokenizer", "loss", "optimizer", "model_converters", "override")
CHECKPOINTING = {"SelectiveAC": "selective", "FullAC": "full", "MemoryBudgetAC": "memory_budget"}
LOSSES = ("CrossEntropyLoss", "ChunkedLossWrapper", "BaseLoss", "ChunkedCELoss")
# The module that reads each model's layers.
LAYERS = dict.fromkeys(torchtitan_layers.DENSE, torchtitan_layers) | dict.fromkeys(torchtitan_experts.MODELS, torchtitan_experts)
QUANTIZED = ("Float8", "MXFP8", "NVFP4", "LoRA")


def values_of(configuration: Configuration) -> dict[str, Any]:
    """Return the nested values of a Trainer.Config. Unknown values stay where they are."""
    tree = configuration.known_tree()
    values: dict[str, Any] = {}
    for name, section in tree.items():
        if name not in LEFT_OUT and isinstance(section, dict):
            values[MOVED.get(name, name)] = section
    # Before defaults are left out, because the keys that get the names of the TOML files are new.
    _tokens(values)
    for name in tree:
        if name not in LEFT_OUT and isinstance(tree[name], dict):
            _leave_out_defaults(configuration, name, tree[name])
    for name in ("local_batch_size", "seq_len"):
        # The validator takes the sizes of training where it has none of its own.
        if isinstance(values.get("validation"), dict) and name in values.get("training", {}):
            values["validation"].setdefault(name, values["training"][name])
    values["job"] = {"dump_folder": tree.get("dump_folder")}
    values |= _float8(tree)
    values["model"] = _model(tree)
    values |= _absent_parts(tree)
    values["optimizer"] = _optimizer(tree.get("optimizer"))
    checkpointing = tree.get("activation_checkpoint")
    if checkpointing is None or (isinstance(checkpointing, dict) and "mode" not in checkpointing):
        kind = str((checkpointing or {}).get("_target_", "")).removesuffix(".Config").rpartition(".")[2]
        values["activation_checkpoint"] = {"mode": CHECKPOINTING.get(kind, kind or "none")}
    for section in values.values():
        if isinstance(section, dict):
            section.pop("_target_", None)
    values.get("validation", {}).pop("dataloader", None)
    values.get("profiling", {}).pop("trace_post_processor", None)
    values.update(_other_programs(tree))
    if any("ConcatThenSplit" in target for target in _targets(tree.get("dataloader"))):
        values["dataloader"] = {"dataset": "documents of a whole micro batch in one row"}
    return values


def _leave_out_defaults(configuration: Configuration, name: str, section: dict[str, Any]) -> None:
    """Leave out fields that came after the TOML files, where they have their defaults."""
    instance = configuration.value.attributes.get(name)
    known = options("torchtitan")
    for field, default in configuration.tree.defaults(instance).items() if isinstance(instance, Instance) else ():
        key = f"{MOVED.get(name, name)}.{field}"
        if field in section and section[field] == default and key not in known and key not in ROWS:
            del section[field]


def _other_programs(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes another training than that of a decoder on texts, under OTHER_PROGRAM."""
    found: dict[str, Any] = {}
    if tree.get("_target_") not in TRAINERS:
        found["trainer"] = tree.get("_target_")
    targets = set(_targets(tree.get("dataloader")))
    if any("Chat" in target or "SFT" in target for target in targets):
        found["dataloader"] = "a fine-tuning on chats"
    elif any("FirstFit" in target for target in targets):
        found["dataloader"] = "whole documents packed into rows, longer ones left out"
    loss = tree.get("loss")
    if isinstance(loss, dict) and str(loss.get("_target_", "")).removesuffix(".Config").rpartition(".")[2] not in LOSSES:
        found["loss"] = loss.get("_target_")
    override = tree.get("override")
    if isinstance(override, dict) and override.get("imports"):
        found["override"] = override["imports"]
    return {OTHER_PROGRAM: found} if found else {}


def _targets(value: Any) -> list[str]:
    """List the classes of an object and of its parts."""
    if isinstance(value, dict):
        own = [str(value["_target_"])] if "_target_" in value else []
        return own + [target for part in value.values() for target in _targets(part)]
    return [target for part in value for target in _targets(part)] if isinstance(value, list) else []


def _model(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's name and flavor, its sizes if it is a dense one, and how its layers are converted."""
    specification = tree.get("model_spec")
    if not isinstance(specification, dict):
        return {"name": specification if isinstance(specification, Unknown) else "none"}
    model = specification.get("model")
    converted = model.pop(CONVERTERS, []) if isinstance(model, dict) else []
    values: dict[str, Any] = {"name": specification.get("name"), "flavor": specification.get("flavor")}
    layers = LAYERS.get(class_name(model))
    if isinstance(model, dict) and layers:
        values[SIZES] = layers.options_of(model)
        epsilon = torchtitan_experts.latent_epsilon(model)
        values |= {} if epsilon is None else {LATENT_EPSILON: epsilon}
    elif isinstance(model, Unknown):
        values[SIZES] = model
    converters = tree.get("model_converters")
    named = _targets(converters.get("converters")) if isinstance(converters, dict) else []
    named += [str(converter["_target_"]) for converter in converted]
    named += sorted(
        {target for target in _targets(model) if target.removesuffix(".Config").rpartition(".")[2].startswith(QUANTIZED)}
    )
    if named:
        values["converters"] = [target.lower().replace("float8linear", "float8") for target in named]
    return values


def _float8(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the converter to float8 as the section that TOML files had."""
    specification = tree.get("model_spec")
    model = specification.get("model") if isinstance(specification, dict) else None
    for converter in model.get(CONVERTERS, []) if isinstance(model, dict) else []:
        if str(converter["_target_"]).endswith(".Float8LinearConverter.Config"):
            return {
                "float8": {name: converter[name] for name in ("recipe_name", "filter_fqns", "emulate") if converter.get(name)}
            }
    return {}


def _absent_parts(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of the model that lt-train has not, under their names in the configuration."""
    specification = tree.get("model_spec")
    model = specification.get("model") if isinstance(specification, dict) else None
    if not isinstance(model, dict):
        return {}
    # The name of a flavor says nothing of a model whose layers are not read.
    layers = LAYERS.get(class_name(model))
    parts = layers.absent_parts(model) if layers else {"": class_name(model)}
    # A ledger takes None for a key that is not set.
    told = {f"model.{name}".removesuffix("."): "none" if value is None else value for name, value in parts.items()}
    return {PARTS: told} if told else {}


def _optimizer(section: Any) -> dict[str, Any]:
    """Return the optimizer's settings. Since summer 2026 each group of parameters has an optimizer of its own."""
    if not isinstance(section, dict):
        return {"name": section}
    groups = section.pop("param_groups", [])
    values = {name: value for name, value in section.items() if name in ("name", "lr", "beta1", "beta2", "eps", "weight_decay")}
    values["implementation"] = section.get("implementation")
    if isinstance(groups, Unknown) or any(not isinstance(group, dict) for group in groups):
        return {**values, "name": groups if isinstance(groups, Unknown) else "unknown"}
    if not groups:
        return values
    if len(groups) > 1 or groups[0].get("pattern") != ".*" or not groups[0].get("optimizer_name"):
        return {**values, "name": "an optimizer for each group of parameters"}
    arguments = dict(groups[0].get("optimizer_kwargs") or {})
    values["name"] = groups[0].get("optimizer_name")
    values["beta1"], values["beta2"] = arguments.pop("betas", (0.9, 0.999))
    # The defaults of torch.optim.AdamW.
    for name, default in (("lr", 1e-3), ("eps", 1e-8), ("weight_decay", 0.01)):
        values[name] = arguments.pop(name, default)
    return values | arguments


def _tokens(values: Mapping[str, Any]) -> None:
    """Turn numbers of tokens, which TorchTitan has since summer 2026, into sequences."""
    training = values.get("training", {})
    length = training.pop("max_context_length", None)
    if length is None:
        return
    training["seq_len"] = length
    for name, key in (
        ("num_tokens_per_microbatch_per_dp_rank", "local_batch_size"),
        ("num_tokens_per_train_step", "global_batch_size"),
    ):
        tokens = training.pop(name, None)
        if isinstance(tokens, int) and isinstance(length, int) and tokens > 0 and length > 0 and tokens % length == 0:
            training[key] = tokens // length
        elif tokens == -1 or tokens is None:
            training[key] = tokens
        else:
            training[key] = tokens if isinstance(tokens, Unknown) else Unknown(f"{tokens} tokens are no whole sequences", name)
    parallelism = values.get("parallelism", {})
    microbatches = parallelism.pop("num_pp_microbatches", 1)
    if training.get("global_batch_size") == -1 and microbatches != 1 and parallelism.get("pipeline_parallel_degree", 1) != 1:
        training["global_batch_size"] = Unknown("it is the micro batches of all data-parallel ranks", "num_tokens_per_train_step")
