"""Translate FlagScale's training YAML: sections of options with Megatron-LM's names.

FlagScale turns the YAML into Megatron-LM's command line, and this module does the same: `true` becomes a switch, and a value
that is false or empty is omitted.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadData
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Dropped, Translation
from lt_train.importers.megatron_flags import decides_run
from lt_train.importers.megatron_lm import translate as translate_words

SOURCE = "FlagScale"
SECTIONS = ("system", "model", "data")
# Sections that FlagScale's runner reads, not the program that it starts.
LAUNCHER = ("experiment", "action", "hydra", "defaults", "inference", "serve")
OF_LAUNCHER = "a setting of the launcher: see lt-train render and --save"
UNKNOWN = "not a section of a training"
ENTRYPOINT = "experiment.task.entrypoint"
# Options that change neither the model nor the batches, the schedule or the layout.
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
    """Translate `values`, whose keys are dotted paths.

    Raises BadData if an option that decides the run refers to another file.
    """
    words = ["pretrain_gpt.py"]
    references: dict[str, Any] = {}
    other_values: dict[str, Any] = {}
    for key, value in values.items():
        section, _, path = key.partition(".")
        name = path.rpartition(".")[2]
        if section in SECTIONS and isinstance(value, str) and "${" in value:
            references[key] = value
        elif section in SECTIONS and path:
            words += _words(name, value)
        else:
            other_values[key] = value
    names = {key: key.rpartition(".")[2] for key in references}
    deciding = {key for key, name in names.items() if decides_run(name, [""]) or name == "split"}
    missing = [key for key in references if key in deciding and names[key] not in NOT_NEEDED]
    if missing:
        raise BadData(f"{', '.join(missing)}: another file has the value", " ".join(f"--set {key}=VALUE" for key in missing))
    translation = translate_words(words, SOURCE)
    dropped = [
        Dropped(key, value, "another file has the value: see --set", Effect.RESULT if key in deciding else Effect.NONE)
        for key, value in references.items()
    ]
    dropped += [
        Dropped(key, value, OF_LAUNCHER if _is_of_launcher(key) else UNKNOWN, Effect.NONE if _is_of_launcher(key) else Effect.RUN)
        for key, value in other_values.items()
        if key != ENTRYPOINT and value is not None
    ]
    dropped.append(Dropped(ENTRYPOINT, "pretrain_gpt.py", "another file names the program; this one is taken", Effect.RESULT))
    return dataclasses.replace(translation, dropped=(*translation.dropped, *dropped))


def _words(name: str, value: Any) -> list[str]:
    if value is None or value is False or value == [] or value == {}:
        return []
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return [flag]
    return [flag, *(str(entry) for entry in (value if isinstance(value, list) else str(value).split()))]
