"""Turn the run.Partial of NeMo 2's recipes into the sections of Megatron-Bridge, which descends from NeMo's classes."""

import posixpath
from collections.abc import Collection, Mapping
from typing import Any

from lt_shared.console import BadData
from lt_train.importers.bridge import recipe
from lt_train.importers.python.configuration import Configuration
from lt_train.importers.python.values import Instance, Unknown

PRETRAINING = ("pretrain", "train")
# Callbacks that change no step.
HARMLESS_CALLBACKS = (
    *("TimingCallback", "GarbageCollectionCallback", "MegatronCommOverlapCallback", "FLOPsMeasurementCallback", "NsysCallback"),
    *("PreemptionCallback", "DeepEPCallback", "RuntimeEstimator", "MemoryProfileCallback", "MemoryMonitor", "SpeedMonitor"),
)
OF_STRATEGY = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel"),
)
OF_DATA = {
    "seq_length": "seq_length",
    "num_workers": "num_workers",
    "split": "split",
    "seed": "random_seed",
    "index_mapping_dir": "path_to_cache",
    "reset_position_ids": "reset_position_ids",
    "reset_attention_mask": "reset_attention_mask",
    "eod_mask_loss": "eod_mask_loss",
    "dataloader_type": "dataloader_type",
}
BATCHES = ("micro_batch_size", "global_batch_size", "rampup_batch_size")
DATASETS = {"PreTrainingDataModule": "GPTDatasetConfig", "MockDataModule": "MockGPTDatasetConfig"}
# Defaults of NeMo's classes in 2025-09, for recipes outside of a checkout.
DATA_DEFAULTS = {"seq_length": 2048, "micro_batch_size": 4, "global_batch_size": 8}
SPLIT = "900,50,50"
SCHEDULE_DEFAULTS = {"warmup_steps": 750, "constant_steps": 80000, "min_lr": 6e-5}
SCHEDULES = {"CosineAnnealingScheduler": "cosine"}
# Classes whose layers NeMo changes by code, where lt-train's preset stands for the published model.
PUBLISHED = {"Gemma2Config2B": "gemma2-2b", "Gemma2Config9B": "gemma2-9b", "Gemma2Config27B": "gemma2-27b"}
# Gemma2DotProductAttention gives the window to the 2nd, 4th, ... layer, the published model to the 1st, 3rd, ...
OTHER_WINDOWS = "in the layers 2, 4, 6, ..."
# Arguments of Lightning's trainer that change no step, at any value.
OF_MACHINES = (
    *("accelerator", "devices", "num_nodes", "use_distributed_sampler", "limit_test_batches", "logger", "strategy", "plugins"),
    *("callbacks", "max_steps", "limit_val_batches", "val_check_interval", "log_every_n_steps", "enable_checkpointing"),
    *("num_sanity_val_steps", "enable_progress_bar", "enable_model_summary"),
)


def values_of(configuration: Configuration, carried: Collection[str]) -> dict[str, Any]:
    """Return the nested values of a recipe under Megatron-Bridge's names. Raises BadData for another task than pretraining."""
    tree = configuration.known_tree()
    task = str(tree.get("_target_")).rpartition(".")[2]
    if task not in PRETRAINING:
        raise BadData(f"{task}: lt-train pretrains", "import the recipe's pretrain_recipe")
    trainer, data = _part(tree, "trainer"), DATA_DEFAULTS | _part(tree, "data")
    strategy = _part(trainer, "strategy")
    values: dict[str, Any] = {"_target_": "nemo.run.Partial", "model": _model(configuration, tree, strategy, carried)}
    values["train"] = {"train_iters": _length(trainer), **{name: data.get(name) for name in BATCHES}}
    values["validation"] = _validation(trainer)
    values["dataset"] = _dataset(data)
    lengths = (values["model"].get("seq_length"), values["dataset"].get("seq_length"))
    if values["model"].get("position_embedding_type") == "rope" and all(isinstance(length, int) for length in lengths):
        # NeMo sets no bound to rotary positions, lt-train does.
        values["model"]["seq_length"] = max(lengths)
    values["logger"] = {"log_interval": trainer.get("log_every_n_steps")}
    values["ddp"] = strategy.get("ddp") if isinstance(strategy.get("ddp"), dict | Unknown) else {}
    values["optimizer"], values["scheduler"] = _optimizer(_part(tree, "optim"), trainer.get("max_steps"))
    values["mixed_precision"] = _precision(trainer.get("plugins"))
    values["checkpoint"] = _checkpoint(tree)
    for name, path in (("optimizer", "optim.config"), ("ddp", "trainer.strategy.ddp"), ("mixed_precision", "trainer.plugins")):
        instance = _instance(configuration.value, path)
        if instance is not None and isinstance(values[name], dict):
            recipe.leave_out_defaults(configuration, carried, name, instance, values[name])
    others = {name: value for name, value in trainer.items() if name not in (*OF_MACHINES, "_target_")}
    if others.get("accumulate_grad_batches") == 1:
        del others["accumulate_grad_batches"]
    if strategy.get("fsdp") is not None:
        others["fsdp"] = strategy["fsdp"]
    if strategy.get("setup_optimizers") is False:
        others["setup_optimizers"] = False
    if others:
        values["trainer"] = others
    if tree.get("peft") is not None:
        values["peft"] = tree["peft"]
    if tree.get("model_transform") is not None:
        values["peft"] = {"model_transform": tree["model_transform"]}
    recipe.spread_precision(values)
    values = {name: value for name, value in values.items() if value != {}}
    callbacks = _callbacks(trainer.get("callbacks"))
    return values | ({"peft": {"callbacks": callbacks}} if callbacks else {})


def _instance(value: Any, path: str) -> Instance | None:
    """Return the object at the dotted `path` of a configuration, or None."""
    for name in path.split("."):
        value = value.attributes.get(name) if isinstance(value, Instance) else None
    return value if isinstance(value, Instance) else None


def _part(tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a part of the recipe. Raises BadData if only a run would show it."""
    value = tree.get(name)
    if isinstance(value, Unknown):
        raise BadData(f"{name}: only a run of the configuration knows the value: {value}", "lt-train import recipe.py:FUNCTION")
    return value if isinstance(value, dict) else {}


def _model(
    configuration: Configuration, tree: Mapping[str, Any], strategy: Mapping[str, Any], carried: Collection[str]
) -> dict[str, Any]:
    model = _part(tree, "model")
    settings = _part(model, "config")
    # The models read the length of sequences alone.
    settings.pop("max_position_embeddings", None)
    instance = _instance(configuration.value, "model.config")
    if instance is not None:
        recipe.leave_out_defaults(configuration, carried, "model", instance, settings)
    layout = {name: strategy[name] for name in OF_STRATEGY if strategy.get(name) is not None}
    package, _, name = str(settings.get("_target_")).rpartition(".")
    preset = PUBLISHED.get(name)
    if preset and package.startswith("nemo.") and instance is not None:
        settings = _changes(configuration, instance, settings, _part(tree, "data").get("seq_length"))
        settings |= {"_target_": recipe.PROVIDER, "preset": preset}
    return {**settings, **layout}


def _changes(configuration: Configuration, instance: Instance, settings: dict[str, Any], length: Any) -> dict[str, Any]:
    """Return what a recipe has changed in a published model, and what trains it."""
    defaults = configuration.tree.defaults(instance)
    window = defaults.get("window_size")
    changes = {
        name: value
        for name, value in settings.items()
        if name in recipe.OF_TRAINING or name not in defaults or value != defaults[name]
    }
    changes.pop("seq_length", None)
    if not (isinstance(window, list | tuple) and isinstance(length, int) and length <= window[0]):
        changes["window_attn_skip_freq"] = OTHER_WINDOWS
    return changes


def _length(trainer: Mapping[str, Any]) -> Any:
    steps = trainer.get("max_steps")
    return Unknown("the run has no number of steps", "trainer.max_steps") if steps in (None, -1) else steps


def _validation(trainer: Mapping[str, Any]) -> dict[str, Any]:
    # Lightning's defaults: all batches, once an epoch.
    batches, interval = trainer.get("limit_val_batches"), trainer.get("val_check_interval")
    batches = 1.0 if batches is None else batches
    interval = 1.0 if interval is None else interval
    if isinstance(batches, float):
        batches = 0 if batches == 0 else Unknown("it is a share of the validation data", "trainer.limit_val_batches")
    if isinstance(interval, float):
        interval = Unknown("it is a share of an epoch", "trainer.val_check_interval") if batches else None
    return {"eval_iters": batches, "eval_interval": interval}


def _dataset(data: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(data.get("_target_", "")).rpartition(".")[2]
    target = f"megatron.bridge.training.config.{DATASETS[kind]}" if kind in DATASETS else data.get("_target_")
    paths = data.get("paths")
    if kind == "PreTrainingDataModule" and data.get("split") is None:
        data = {**data, "split": SPLIT}
    values = {name: data[key] for key, name in OF_DATA.items() if data.get(key) is not None}
    if isinstance(paths, dict):
        paths = Unknown("the parts have files of their own", "data.paths")
    return {"_target_": target, **values, **({} if paths is None else {"data_path": paths})}


def _optimizer(section: Mapping[str, Any], steps: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the optimizer and the schedule, which is as long as the run."""
    if str(section.get("_target_", "")).rpartition(".")[2] != "MegatronOptimizerModule":
        return {"_target_": section.get("_target_")}, {}
    optimizer = dict(_part(section, "config"))
    schedule = _part(section, "lr_scheduler")
    kind = str(schedule.get("_target_", "")).rpartition(".")[2]
    if not schedule:
        return optimizer, {"lr_decay_style": "constant", "lr_warmup_iters": 0}
    if kind in SCHEDULES:
        schedule = SCHEDULE_DEFAULTS | schedule
    optimizer["min_lr"] = schedule.get("min_lr")
    values = {"lr_decay_style": SCHEDULES.get(kind, kind), "lr_warmup_iters": schedule.get("warmup_steps")}
    constant = schedule.get("constant_steps")
    if constant and isinstance(constant, int) and isinstance(steps, int):
        values["lr_decay_iters"] = steps - constant
    return optimizer, values


def _precision(plugin: Any) -> dict[str, Any] | Unknown:
    """Return the settings of MegatronMixedPrecision, which bears the names of Megatron-Bridge's."""
    if isinstance(plugin, list) and len(plugin) == 1:
        plugin = plugin[0]
    if isinstance(plugin, Unknown) or plugin is None:
        return plugin if isinstance(plugin, Unknown) else {}
    if not isinstance(plugin, dict):
        return Unknown("several plugins", "trainer.plugins")
    kind = str(plugin.get("precision"))
    settings = {name.removeprefix("fp16_"): value for name, value in plugin.items() if name not in ("precision", "_target_")}
    return {**settings, "bf16": kind.startswith("bf16"), "fp16": kind.startswith("16")}


def _checkpoint(tree: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    log, resume = tree.get("log"), tree.get("resume")
    if isinstance(log, dict) and isinstance(log.get("log_dir"), str):
        values["save"] = posixpath.join(log["log_dir"], str(log.get("name") or "default"))
        checkpoints = log.get("ckpt")
        values["save_interval"] = checkpoints.get("every_n_train_steps") if isinstance(checkpoints, dict) else None
    if isinstance(resume, dict):
        values |= _start(resume)
    elif resume is not None:
        values["pretrained_checkpoint"] = resume
    if _part(_part(tree, "trainer"), "strategy").get("ckpt_load_optimizer") is False:
        values["load_optim"] = False
    return values


def _start(resume: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checkpoint that AutoResume takes: all of that to resume from, or else the weights of that to restore."""
    if resume.get("resume_from_path") is not None:
        return {"load": resume["resume_from_path"]}
    values: dict[str, Any] = {}
    if resume.get("resume_from_directory") is not None and resume.get("resume_if_exists") is not False:
        values["load"] = resume["resume_from_directory"]
    restored = resume.get("restore_config")
    if not isinstance(restored, dict):
        return values if restored is None else {**values, "pretrained_checkpoint": restored}
    # RestoreConfig's defaults: the weights without the optimizer.
    others = {f"restore_{name}": restored[name] for name in ("load_optim_state",) if restored.get(name)}
    if restored.get("load_model_state") is False:
        others["restore_load_model_state"] = False
    return {**values, "pretrained_checkpoint": restored.get("path"), **others}


def _callbacks(callbacks: Any) -> list[str]:
    """List the callbacks that may change a step."""
    if isinstance(callbacks, Unknown):
        return [str(callbacks)]
    names = [str(entry.get("_target_", "")) if isinstance(entry, dict) else str(entry) for entry in callbacks or ()]
    return [name for name in names if name.rpartition(".")[2] not in HARMLESS_CALLBACKS]
