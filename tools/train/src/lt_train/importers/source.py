"""Which trainer a configuration belongs to, and its keys with references resolved."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from lt_shared import storage
from lt_shared.console import BadData, NoInput
from lt_train.config import credentials
from lt_train.importers import hyperpod, megatron_lm, nemo, strict_yaml, torchtitan
from lt_train.importers.ledger import Translation, flatten

SYNTAX = "a TorchTitan configuration ends in .toml, a recipe or a NeMo configuration in .yaml; any other file is a shell script"
REFERENCE = re.compile(r"\$\{([^${}]+)\}")
# Keys that only one of the two has, for the rare file without its sections.
OF_RECIPES = ("run.", "recipes.", "use_smp_model", "cluster_type", "model.train_batch_size", "model.tensor_model_parallel_degree")


def translate_file(path: str) -> Translation:
    """A TorchTitan TOML, a HyperPod recipe, a NeMo YAML, or a script that starts pretrain_gpt.py. Raises NoInput or BadData."""
    credentials.check(path, "FILE")
    try:
        text = storage.read_bytes(path).decode()
    except NoInput as error:
        raise NoInput(str(error), "lt-train import FILE, or lt-train import -- COMMAND LINE") from None
    except UnicodeDecodeError:
        raise BadData(f"{path}: not a text file", SYNTAX) from None
    suffix = PurePath(path).suffix.lower()
    try:
        if suffix == ".toml":
            return torchtitan.translate(flatten(tomllib.loads(text)))
        if suffix in (".yaml", ".yml"):
            values = _yaml(text)
            is_recipe = any(key.startswith(OF_RECIPES) for key in values)
            return hyperpod.translate(values) if is_recipe else nemo.translate(values)
        return megatron_lm.translate(megatron_lm.command_in(text))
    except tomllib.TOMLDecodeError as error:
        raise BadData(f"{path}: not TOML: {error}", SYNTAX) from None
    except RecursionError:
        raise BadData(f"{path}: nested too deeply for a configuration", SYNTAX) from None
    except BadData as error:
        raise BadData(f"{path}: {error}", error.hint or SYNTAX) from None


def translate_command(words: Sequence[str]) -> Translation:
    """The command line of pretrain_gpt.py. Raises BadData for another one."""
    return megatron_lm.translate(words)


def _yaml(text: str) -> dict[str, Any]:
    try:
        content = strict_yaml.loads(text)
    except ValueError as error:
        raise BadData(f"not YAML: {error}", SYNTAX) from None
    if not isinstance(content, dict):
        raise BadData("not a configuration: it has no keys")
    flat = flatten({str(key): value for key, value in content.items()})
    return {key: _resolved(key, value, flat) for key, value in flat.items()}


def _resolved(key: str, value: Any, flat: dict[str, Any], depth: int = 0) -> Any:
    """References of OmegaConf: ${a.b} from the top, ${.b} beside `key`. One that is not in the file stays as it is."""
    if not isinstance(value, str) or depth > 8:
        return value
    whole = REFERENCE.fullmatch(value)
    if whole:
        target = _target(key, whole[1], flat)
        return value if target is None else _resolved(target, flat[target], flat, depth + 1)

    def text(reference: re.Match[str]) -> str:
        target = _target(key, reference[1], flat)
        return reference[0] if target is None else str(_resolved(target, flat[target], flat, depth + 1))

    return REFERENCE.sub(text, value)


def _target(key: str, name: str, flat: dict[str, Any]) -> str | None:
    if name.startswith("."):
        name = f"{key.rpartition('.')[0]}.{name[1:]}".removeprefix(".")
    return next((found for found in (name, name.removeprefix("recipes.")) if found in flat), None)
