"""FlagScale's YAML of a training: sections around options that have Megatron-LM's names.

FlagScale turns the YAML into Megatron-LM's command line, and this module reads it in the same way: a true switch is present, a
false or empty value is absent.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadData
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Dropped, Translation
from lt_train.importers.megatron_flags import decides
from lt_train.importers.megatron_lm import translate as translate_words

SOURCE = "FlagScale"
SECTIONS = ("system", "model", "data")
# Sections that FlagScale's runner reads, not the program that it starts.
LAUNCHER = ("experiment", "action", "hydra", "defaults", "inference", "serve")
OF_LAUNCHER = "a setting of the launcher: see lt-train render and --save"
UNKNOWN = "not a section of a training"
ENTRYPOINT = "experiment.task.entrypoint"
# Numbers that choose no other model, batch, schedule or layout.
NOT_NEEDED = ("split", "seed", "save_interval", "log_interval", "eval_interval", "eval_iters")
OF_FLAGSCALE = (
    "system.tensor_model_parallel_size",
    "system.precision.bf16",
    "system.precision.fp16",
    "system.logging.log_interval",
)


def _is_of_launcher(key: str) -> bool:
    return key.partition(".")[0] in LAUNCHER


def is_training(values: Mapping[str, Any]) -> bool:
    return any(key in values for key in OF_FLAGSCALE) and "model.num_layers" in values


def translate(values: Mapping[str, Any]) -> Translation:
    """`values` are the keys with dots. Raises BadData for one that decides the run and stands in another file."""
    words = ["pretrain_gpt.py"]
    elsewhere: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for key, value in values.items():
        section, _, rest = key.partition(".")
        name = rest.rpartition(".")[2]
        if section in SECTIONS and isinstance(value, str) and "${" in value:
            elsewhere[key] = value
        elif section in SECTIONS and rest:
            words += _words(name, value)
        else:
            others[key] = value
    names = {key: key.rpartition(".")[2] for key in elsewhere}
    deciding = {key for key, name in names.items() if decides(name, [""]) or name == "split"}
    needed = [key for key in elsewhere if key in deciding and names[key] not in NOT_NEEDED]
    if needed:
        raise BadData(f"{', '.join(needed)}: another file has the value", " ".join(f"--set {key}=VALUE" for key in needed))
    translation = translate_words(words, SOURCE)
    left = [
        Dropped(key, value, "another file has the value: see --set", Effect.RESULT if key in deciding else Effect.NONE)
        for key, value in elsewhere.items()
    ]
    left += [
        Dropped(
            key, value, OF_LAUNCHER if _is_of_launcher(key) else UNKNOWN, Effect.NONE if _is_of_launcher(key) else Effect.RESULT
        )
        for key, value in others.items()
        if key != ENTRYPOINT and value is not None
    ]
    left.append(Dropped(ENTRYPOINT, "pretrain_gpt.py", "another file names the program; this one is taken", Effect.RESULT))
    return dataclasses.replace(translation, dropped=(*translation.dropped, *left))


def _words(name: str, value: Any) -> list[str]:
    if value is None or value is False or value == [] or value == {}:
        return []
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return [flag]
    return [flag, *(str(entry) for entry in (value if isinstance(value, list) else str(value).split()))]
