"""Translate AMD's Primus experiments: a model and a module, each of which extends others, and overrides."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lt_shared.console import BadData
from lt_train.importers import megatron_lm, torchtitan
from lt_train.importers.composed.arguments import switch_of, words_of
from lt_train.importers.composed.files import Files, fill_environment, merge
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Dropped, Translation, flatten
from lt_train.importers.ledger import options as lt_options
from lt_train.importers.upstream.megatron_forks import ROWS as FORKS
from lt_train.importers.upstream.megatron_options import ROWS as MEGATRONS
from lt_train.importers.upstream.rows import options

SOURCE = "Primus"
PRESETS = Path("primus/configs")
TRAINERS = ("megatron", "torchtitan")
# Sections that Primus adds to TorchTitan's.
OF_PRIMUS = ("primus_turbo", "sink_level", "file_sink_level", "stderr_sink_level", "trainable", "extends", "includes")
TURBO = "primus_turbo"
# What FSDP does by itself.
BY_FSDP = ("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather")
OF_FSDP = "FSDP shards the optimizer and overlaps communication by itself"
MADE_UP = "made-up data has no order; lt-train orders DATA as dataloader_type single"
BASE_MODEL = "language_model.yaml"
# Where Primus adds its own section to TorchTitan's.
EXTENSION = "custom_args_module"
DEEPEST = 12


def is_experiment(values: Mapping[str, Any]) -> bool:
    modules = values.get("modules")
    return isinstance(modules, dict) and any(isinstance(module, dict) and "framework" in module for module in modules.values())


def translate(values: Mapping[str, Any], file: Path, overrides: Mapping[str, Any]) -> Translation:
    """Translate an experiment. `overrides` are arguments of the trainer. Raises BadData for one without a pretraining."""
    values = fill_environment(dict(values))
    modules = [module for module in values["modules"].values() if isinstance(module, dict) and "framework" in module]
    if len(modules) != 1 or "pre_trainer" not in values["modules"]:
        raise BadData(f"modules {', '.join(values['modules'])}: lt-train pretrains, with one module pre_trainer")
    (module,) = modules
    framework = str(module["framework"])
    if framework not in TRAINERS:
        raise BadData(f"framework {framework}: lt-train reads those of {' and '.join(TRAINERS)}")
    root = next((parent for parent in file.absolute().parents if (parent / PRESETS).is_dir()), None)
    if root is None:
        raise BadData(f"{PRESETS} is not above it", "import it in a checkout of Primus")
    files = Files(root)
    defaults = _extended(files, root / PRESETS / "modules" / framework / str(module.get("config")))
    model = _extended(files, root / PRESETS / "models" / framework / str(module.get("model")))
    own = module.get("overrides") if isinstance(module.get("overrides"), dict) else {}
    composed = merge(merge(defaults, model), merge(own or {}, _nested(overrides)))
    composed.pop("extends", None)
    base = root / PRESETS / "models" / framework / BASE_MODEL
    defaults = merge(defaults, _extended(files, base)) if base.is_file() else defaults
    return _of_megatron(composed, defaults) if framework == "megatron" else _of_torchtitan(composed)


def _nested(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as nested tables."""
    nested: dict[str, Any] = {}
    for key, value in overrides.items():
        *path, last = key.split(".")
        part: dict[str, Any] = {last: value}
        for name in reversed(path):
            part = {name: part}
        nested = merge(nested, part)
    return nested


def _extended(files: Files, path: Path, depth: int = 0) -> dict[str, Any]:
    """Read a preset with those that it extends, which it overrides."""
    if depth > DEEPEST:
        raise BadData(f"{path.name}: presets extend each other too deeply")
    content = files.read(path)
    bases = [str(name) for key in ("extends", "includes", "bases") for name in content.pop(key, None) or []]
    merged: dict[str, Any] = {}
    for name in bases:
        merged = merge(merged, _extended(files, path.parent / name, depth + 1))
    return merge(merged, content)


def _of_megatron(composed: Mapping[str, Any], defaults: Mapping[str, Any]) -> Translation:
    """Turn the arguments into Megatron-LM's words. Primus's own arguments count where they are not its defaults."""
    known = {*options("megatron_lm"), *lt_options(), *MEGATRONS, *FORKS}
    own = {
        name: value
        for name, value in composed.items()
        if name not in known and switch_of(name) is None and name in defaults and value == defaults[name]
    }
    dropped = [Dropped(name, value, "Primus's default, as without it", Effect.NONE) for name, value in own.items()]
    ordered = composed.get("dataloader_type")
    if composed.get("use_torch_fsdp2"):
        dropped += [Dropped(name, composed[name], OF_FSDP, Effect.SPEED) for name in BY_FSDP if composed.get(name)]
        composed = {name: value for name, value in composed.items() if name not in BY_FSDP}
    if composed.get("mock_data") and ordered is not None:
        composed = {name: value for name, value in composed.items() if name != "dataloader_type"}
    words = words_of({name: value for name, value in composed.items() if name not in own})
    translation = megatron_lm.translate(["pretrain_gpt.py", *words], SOURCE)
    if composed.get("mock_data") and ordered is not None:
        dropped.append(Dropped("dataloader_type", ordered, MADE_UP, Effect.RESULT))
    return dataclasses.replace(translation, dropped=(*translation.dropped, *dropped))


def _of_torchtitan(composed: Mapping[str, Any]) -> Translation:
    values = {name: value for name, value in composed.items() if name not in OF_PRIMUS}
    training = values.get("training")
    is_mock = isinstance(training, dict) and training.pop("mock_data", None)
    model = values.get("model")
    if isinstance(model, dict) and isinstance(model.get("converters"), list):
        model["converters"] = [name for name in model["converters"] if name != TURBO]
    experimental = values.get("experimental")
    if isinstance(experimental, dict) and str(experimental.get(EXTENSION, "")).startswith("primus."):
        del experimental[EXTENSION]
    translation = torchtitan.translate(flatten(values))
    turbo = composed.get(TURBO) if isinstance(composed.get(TURBO), dict) else {}
    dropped = [
        Dropped(f"{TURBO}.{name}", value, "it chooses AMD's kernels", _effect_of_turbo(name, value))
        for name, value in (turbo or {}).items()
    ]
    if is_mock:
        dropped.append(Dropped("training.mock_data", True, "give DATA, or --mock-data", Effect.NONE))
    return dataclasses.replace(translation, source=SOURCE, dropped=(*translation.dropped, *dropped))


def _effect_of_turbo(name: str, value: Any) -> Effect:
    """float8 of attention, GEMMs and layers changes results; other kernels compute the same."""
    return Effect.RESULT if value and any(word in name for word in ("float8", "fp8", "fp4", "mx")) else Effect.SPEED
