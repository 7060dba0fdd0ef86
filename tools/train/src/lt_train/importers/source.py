"""Detect the trainer that a configuration belongs to, resolve references between its keys, and translate it."""

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
    positions,
    python_file,
    torchtitan,
)
from lt_train.importers.composed import composition
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
# The largest configuration of the trainers, a script with its comments, has less than a tenth of it.
MOST_BYTES = 1_000_000
MOST_DIGITS, MOST_DOTS = 1000, 1000
STRUCTURED = (".toml", ".yaml", ".yml")
LONG_NUMBER = re.compile(rf"\d[\d_]{{{MOST_DIGITS},}}")
# Characters of a value with its references written out, and of an expression.
MOST_CHARACTERS, LONGEST_EXPRESSION = 10_000, 200
ARITHMETIC = re.compile(rf"\$\{{({'|'.join(OPERATIONS)}): *(-?\d+(?: *, *-?\d+)+) *\}}")


def translate_file(path: str, overrides: Mapping[str, str] | None = None) -> Translation:
    """Translate the configuration file at `path` into lt-train's options.

    The file is a TorchTitan TOML, a HyperPod recipe, a NeMo YAML, Megatron-Bridge's run_config.yaml, a configuration in Python
    ("recipe.py:function"), or a script or Kubernetes manifest that starts pretrain_gpt.py. `overrides` maps keys of the
    configuration, or variables of the script, to values that replace the file's values. Raises NoInput or BadData.
    """
    credentials.check(path, "FILE")
    path, name = python_file.split_path(path)
    _check_regular(path)
    text = read_text(path)
    try:
        _check_bounds(text, PurePath(path).suffix.lower())
        if PurePath(path).suffix.lower() == ".py":
            return python_file.translate(path, name, _parse_overrides(overrides or {}))
        return _translate(Path(path), text, overrides or {})
    except ValueError as error:
        raise BadData(f"{path}: not TOML: {error}", SYNTAX) from None
    except RecursionError:
        raise BadData(f"{path}: nested too deeply for a configuration", SYNTAX) from None
    except BadData as error:
        raise BadData(f"{path}: {error}", error.hint or SYNTAX) from None


def read_text(path: str) -> str:
    """Read a configuration. Raises NoInput, or BadData for a file that is no text or larger than a configuration."""
    local = Path(path)
    try:
        is_large = local.is_file() and local.stat().st_size > MOST_BYTES
        content = b"" if is_large else storage.read_bytes(path)
        if is_large or len(content) > MOST_BYTES:
            raise BadData(f"{path}: larger than {MOST_BYTES:,} bytes: not a configuration", SYNTAX)
        return content.decode()
    except NoInput as error:
        raise NoInput(str(error), "lt-train import FILE, or lt-train import -- COMMAND LINE") from None
    except UnicodeDecodeError:
        raise BadData(f"{path}: not a text file", SYNTAX) from None


def _check_bounds(text: str, suffix: str) -> None:
    """Raise BadData for a number or a dotted key that no parser reads in a short time."""
    if suffix not in STRUCTURED:
        return
    number = LONG_NUMBER.search(text)
    if number:
        line = text.count("\n", 0, number.start()) + 1
        raise BadData(f"line {line}: a number of more than {MOST_DIGITS:,} digits")
    for line, words in enumerate(text.splitlines(), 1):
        if suffix == ".toml" and words.count(".") > MOST_DOTS:
            raise BadData(f"line {line}: more than {MOST_DOTS:,} dots")


def _translate(file: Path, text: str, overrides: Mapping[str, str]) -> Translation:
    suffix = file.suffix.lower()
    if suffix == ".toml":
        return torchtitan.translate(flatten(tomllib.loads(text)) | _parse_overrides(overrides))
    is_manifest = suffix.startswith((".yaml", ".yml")) and kubernetes_manifest.is_manifest(text)
    if is_manifest or suffix not in (".yaml", ".yml"):
        _check_variables(text, overrides)
    if is_manifest:
        command = kubernetes_manifest.command_in(text, overrides)
        return megatron_lm.translate_command(command)
    if suffix not in (".yaml", ".yml"):
        command = megatron_lm.command_in(text, overrides)
        return megatron_lm.translate_command(command)
    content = _load(text)
    composed = composition.translate(content, file, _parse_overrides(overrides))
    if composed is not None:
        return composed
    values = _flat(content, _parse_overrides(overrides))
    if flagscale.is_training(values):
        return flagscale.translate(values)
    if megatron_bridge.is_run_config(values):
        return megatron_bridge.translate(values)
    return hyperpod.translate(values) if hyperpod.is_recipe(values) else nemo.translate(values)


def lines_of(path: str, keys: Sequence[str]) -> dict[str, int]:
    """Map the keys that the file at `path` sets to their lines."""
    path = python_file.split_path(path)[0]
    if PurePath(path).suffix.lower() == ".py":
        return {}
    text = read_text(path)
    lines = {key: positions.line_of(text, path, key) for key in keys}
    return {key: line for key, line in lines.items() if line is not None}


def _check_regular(path: str) -> None:
    """Raise BadData for a named pipe, because reading a pipe blocks until a process writes to it."""
    file = Path(path)
    if file.is_fifo() and not path.startswith(("/dev/", "/proc/")):
        raise BadData(f"{path}: not a file but a named pipe", "lt-train import FILE")


def _check_variables(text: str, overrides: Mapping[str, str]) -> None:
    """Raise BadData for a --set variable that does not occur in the script and would have no effect."""
    for name in overrides:
        if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
            variables = sorted({variable for names in VARIABLE.findall(text) for variable in names if variable})
            nearest = difflib.get_close_matches(name, variables, n=1)
            remedy = f"did you mean {nearest[0]}?" if nearest else f"it has {', '.join(variables) or 'no variables'}"
            raise BadData(f"--set {name}: it has no such variable", remedy)


def _parse_overrides(overrides: Mapping[str, str]) -> dict[str, Any]:
    """Parse the value of each override as YAML."""
    try:
        return {key: strict_yaml.loads(value) for key, value in overrides.items()}
    except ValueError as error:
        raise BadData(f"--set: not YAML: {error}") from None


def translate_command(words: Sequence[str]) -> Translation:
    """Translate the command line of pretrain_gpt.py. Raises BadData for the command line of another program."""
    return megatron_lm.translate(words)


def _load(text: str) -> dict[str, Any]:
    try:
        content = strict_yaml.loads(text)
    except ValueError as error:
        raise BadData(f"not YAML: {error}", SYNTAX) from None
    if not isinstance(content, dict):
        raise BadData("not a configuration: it has no keys")
    return {str(key): value for key, value in content.items()}


def _flat(content: dict[str, Any], overrides: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    flat = flatten(content) | dict(overrides)
    return {key: _compute(_resolve(key, value, flat)) for key, value in flat.items()}


def _resolve(key: str, value: Any, flat: dict[str, Any], depth: int = 0) -> Any:
    """Resolve OmegaConf references in `value`: ${a.b} from the top, ${.b} beside `key`, ${..b} beside the section of `key`.

    A reference to a key that does not exist stays unchanged.
    """
    if isinstance(value, list):
        return [_compute(_resolve(key, entry, flat, depth + 1)) for entry in value]
    if not isinstance(value, str) or depth > 8:
        return value
    whole = REFERENCE.fullmatch(value)
    if whole:
        target = _resolve_key(key, whole[1], flat)
        return value if target is None else _resolve(target, flat[target], flat, depth + 1)

    def text(reference: re.Match[str]) -> str:
        target = _resolve_key(key, reference[1], flat)
        return reference[0] if target is None else str(_resolve(target, flat[target], flat, depth + 1))

    written = REFERENCE.sub(text, value)
    if len(written) > MOST_CHARACTERS:
        raise BadData(f"{key}: its references write out more than {MOST_CHARACTERS:,} characters")
    return written


def _compute(value: Any) -> Any:
    """Evaluate an expression of NeMo's resolvers: ${multiply:4, 1024} is 4096. Unresolved operands leave the text unchanged."""
    match = ARITHMETIC.fullmatch(value) if isinstance(value, str) and len(value) < LONGEST_EXPRESSION else None
    if match is None:
        return value
    numbers = [int(word) for word in match[2].split(",")]
    try:
        return functools.reduce(OPERATIONS[match[1]], numbers)
    except ZeroDivisionError:
        return value


def _resolve_key(key: str, name: str, flat: dict[str, Any]) -> str | None:
    if name.startswith("."):
        below = name.lstrip(".")
        name = ".".join([*key.split(".")[: -(len(name) - len(below))], below])
    candidates = (name, name.removeprefix("recipes."), name.removeprefix("training."))
    return next((candidate for candidate in candidates if candidate in flat), None)
