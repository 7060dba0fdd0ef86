"""Which trainer a configuration belongs to, and its keys with references resolved."""

import difflib
import functools
import operator
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

from lt_shared.console import BadData, NoInput
from lt_shared.files import storage, strict_yaml
from lt_train.config import credentials
from lt_train.importers import (
    flagscale,
    hyperpod,
    kubernetes_manifest,
    megatron_bridge,
    megatron_lm,
    nemo,
    torchtitan,
)
from lt_train.importers.ledger import Translation, flatten

SYNTAX = "a TorchTitan configuration ends in .toml, a recipe or a NeMo configuration in .yaml; any other file is a shell script"
VARIABLE = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=|\$\{?([A-Za-z_]\w*)", re.MULTILINE)
REFERENCE = re.compile(r"\$\{([^${}]+)\}")
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "multiply": operator.mul,
    "sum": operator.add,
    "divide_floor": operator.floordiv,
    "divide_ceil": lambda left, right: -(-left // right),
    "int_div": operator.floordiv,
}
ARITHMETIC = re.compile(rf"\$\{{({'|'.join(OPERATIONS)}): *(-?\d+(?: *, *-?\d+)+) *\}}")
IN_PYTHON = (
    "name a preset with --model (lt-train models lists them); of Megatron-Bridge import the run_config.yaml that its checkpoints"
    " have"
)


def translate_file(path: str, given: Mapping[str, str] | None = None) -> Translation:
    """A TorchTitan TOML, a HyperPod recipe, a NeMo YAML, Megatron-Bridge's run_config.yaml, or what starts pretrain_gpt.py: a
    script, or a manifest of Kubernetes.

    `given` are values of the configuration's keys, or of the script's variables, that come before its own. Raises NoInput or
    BadData.
    """
    credentials.check(path, "FILE")
    _check_regular(path)
    try:
        text = storage.read_bytes(path).decode()
    except NoInput as error:
        raise NoInput(str(error), "lt-train import FILE, or lt-train import -- COMMAND LINE") from None
    except UnicodeDecodeError:
        raise BadData(f"{path}: not a text file", SYNTAX) from None
    try:
        return _translate(PurePath(path).suffix.lower(), text, given or {})
    except tomllib.TOMLDecodeError as error:
        raise BadData(f"{path}: not TOML: {error}", SYNTAX) from None
    except RecursionError:
        raise BadData(f"{path}: nested too deeply for a configuration", SYNTAX) from None
    except BadData as error:
        raise BadData(f"{path}: {error}", error.hint or SYNTAX) from None


def _translate(suffix: str, text: str, given: Mapping[str, str]) -> Translation:
    if suffix == ".toml":
        return torchtitan.translate(flatten(tomllib.loads(text)) | _read(given))
    if suffix == ".py":
        raise BadData("a configuration in Python would have to be executed", IN_PYTHON)
    is_manifest = suffix.startswith((".yaml", ".yml")) and kubernetes_manifest.is_manifest(text)
    if is_manifest or suffix not in (".yaml", ".yml"):
        _check_variables(text, given)
    if is_manifest:
        command = kubernetes_manifest.command_in(text, given)
        return megatron_lm.translate_command(command)
    if suffix not in (".yaml", ".yml"):
        command = megatron_lm.command_in(text, given)
        return megatron_lm.translate_command(command)
    values = _yaml(text, _read(given))
    if flagscale.is_training(values):
        return flagscale.translate(values)
    if megatron_bridge.is_run_config(values):
        return megatron_bridge.translate(values)
    return hyperpod.translate(values) if hyperpod.is_recipe(values) else nemo.translate(values)


def _check_regular(path: str) -> None:
    """Raises BadData for a named pipe: until something is written to it, reading waits."""
    file = Path(path)
    if file.is_fifo() and not path.startswith(("/dev/", "/proc/")):
        raise BadData(f"{path}: not a file but a named pipe", "lt-train import FILE")


def _check_variables(text: str, given: Mapping[str, str]) -> None:
    """Raises BadData for a name that the script does not have: its value would go nowhere."""
    for name in given:
        if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
            known = sorted({found for names in VARIABLE.findall(text) for found in names if found})
            nearest = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {nearest[0]}?" if nearest else f"it has {', '.join(known) or 'no variables'}"
            raise BadData(f"--set {name}: it has no such variable", remedy)


def _read(given: Mapping[str, str]) -> dict[str, Any]:
    """Values as YAML writes them."""
    try:
        return {key: strict_yaml.loads(value) for key, value in given.items()}
    except ValueError as error:
        raise BadData(f"--set: not YAML: {error}") from None


def translate_command(words: Sequence[str]) -> Translation:
    """The command line of pretrain_gpt.py. Raises BadData for another one."""
    return megatron_lm.translate(words)


def _yaml(text: str, given: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    try:
        content = strict_yaml.loads(text)
    except ValueError as error:
        raise BadData(f"not YAML: {error}", SYNTAX) from None
    if not isinstance(content, dict):
        raise BadData("not a configuration: it has no keys")
    flat = flatten({str(key): value for key, value in content.items()}) | dict(given)
    return {key: _computed(_resolved(key, value, flat)) for key, value in flat.items()}


def _resolved(key: str, value: Any, flat: dict[str, Any], depth: int = 0) -> Any:
    """Resolve OmegaConf's references: ${a.b} from the top, ${.b} beside `key`, ${..b} beside its section. Keep others."""
    if isinstance(value, list):
        return [_computed(_resolved(key, entry, flat, depth + 1)) for entry in value]
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


def _computed(value: Any) -> Any:
    """Compute NeMo's resolvers: ${multiply:4, 1024} is 4096. An expression with a missing value stays unchanged."""
    found = ARITHMETIC.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value
    numbers = [int(word) for word in found[2].split(",")]
    return functools.reduce(OPERATIONS[found[1]], numbers)


def _target(key: str, name: str, flat: dict[str, Any]) -> str | None:
    if name.startswith("."):
        below = name.lstrip(".")
        name = ".".join([*key.split(".")[: -(len(name) - len(below))], below])
    return next((found for found in (name, name.removeprefix("recipes."), name.removeprefix("training.")) if found in flat), None)
