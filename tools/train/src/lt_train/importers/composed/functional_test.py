"""Translate the model_config.yaml of Megatron-LM's functional tests, which maps options of pretrain_gpt.py to values."""

from collections.abc import Iterable, Mapping
from typing import Any

from lt_shared.console import BadData
from lt_train.importers import megatron_lm
from lt_train.importers.ledger import Translation

ARGUMENTS = "MODEL_ARGS"
PRETRAINING = "pretraining"
SPECIAL = " \t\n;&|<>()*?[]{}#'\"\\`"


def is_test(content: Mapping[str, Any]) -> bool:
    arguments = content.get(ARGUMENTS)
    return isinstance(arguments, dict) and any(str(key).startswith("--") for key in arguments)


def translate(content: Mapping[str, Any], overrides: Mapping[str, Any]) -> Translation:
    """Translate a test. `overrides` are options of MODEL_ARGS, or variables that the test harness sets. Raises BadData."""
    mode = str(content.get("MODE", PRETRAINING))
    if mode != PRETRAINING:
        raise BadData(f"MODE: {mode}: lt-train pretrains", "import the configuration of a training")
    repeated = [key for key in content if str(key).startswith(f"{ARGUMENTS}_")]
    if repeated:
        raise BadData(f"{', '.join(map(str, repeated))}: the test trains several times, with other options", "import one command")
    arguments = {str(key): value for key, value in content[ARGUMENTS].items()}
    variables = {name: str(value) for name, value in overrides.items() if not name.startswith("-")}
    arguments |= {name: value for name, value in overrides.items() if name.startswith("-")}
    words = ["torchrun", "pretrain_gpt.py"]
    for key, value in arguments.items():
        # The harness writes `true` as a switch, and every other value behind its option.
        words += [key] if value is True else [key, _text(value)]
    return translate_words(words, variables)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def translate_words(words: Iterable[str], variables: Mapping[str, str] | None = None) -> Translation:
    """Translate words of a command line whose variables a shell expands."""
    script = " ".join(_quoted(word) for word in words)
    return megatron_lm.translate_command(megatron_lm.command_in(script, dict(variables or {})))


def _quoted(word: str) -> str:
    """Write a word as the harness does: texts with blanks between double quotes, so that they stay one word."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`")
    is_plain = "${" in word or not any(character in word for character in SPECIAL)
    return (word or '""') if is_plain else f'"{escaped}"'
