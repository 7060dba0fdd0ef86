"""FlagScale's YAML of a training: sections around options that have Megatron-LM's names.

FlagScale makes Megatron-LM's command line of it, and so is it read here: a switch that is true is there, and what is false or
empty is not.
"""

from collections.abc import Mapping
from typing import Any

from lt_train.importers.ledger import Translation
from lt_train.importers.megatron_lm import translate as translate_words

SOURCE = "FlagScale"
SECTIONS = ("system", "model", "data")
OF_FLAGSCALE = (
    "system.tensor_model_parallel_size",
    "system.precision.bf16",
    "system.precision.fp16",
    "system.logging.log_interval",
)


def is_training(values: Mapping[str, Any]) -> bool:
    return any(key in values for key in OF_FLAGSCALE) and "model.num_layers" in values


def translate(values: Mapping[str, Any]) -> Translation:
    """`values` are the keys with dots."""
    words = ["pretrain_gpt.py"]
    for key, value in values.items():
        section, _, rest = key.partition(".")
        if section in SECTIONS and rest:
            words += _words(rest.rpartition(".")[2], value)
    return translate_words(words, SOURCE)


def _words(name: str, value: Any) -> list[str]:
    if value is None or value is False or value == [] or value == {}:
        return []
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return [flag]
    return [flag, *(str(entry) for entry in (value if isinstance(value, list) else str(value).split()))]
