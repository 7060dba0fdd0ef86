"""Translate experiments of oellm-autoexp: Hydra's defaults of a repository, with the arguments of Megatron-LM or TorchTitan."""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lt_shared.console import BadData
from lt_train.importers import megatron_lm
from lt_train.importers.composed.arguments import words_of
from lt_train.importers.composed.files import Files, fill_environment, merge
from lt_train.importers.ledger import Translation
from lt_train.importers.python.core import Raised
from lt_train.importers.python.interpreter import Interpreter
from lt_train.importers.python.values import Module, Scope

SOURCE = "oellm-autoexp"
ROOT_FILE = "autoexp.yaml"
SELF = "_self_"
DEEPEST = 12
# Groups that say where and how often the experiment runs.
# A reference without others inside, a variable of the environment, and oellm-autoexp's whole-number arithmetic.
REFERENCE = re.compile(r"\$\{([^${}:]+)\}")
VARIABLE = re.compile(r"\$\{oc\.env:\s*(\w+)\}")
ARITHMETIC = re.compile(r"\$\{oc\.(muli|divi|addi|subi|mul):\s*([\d.e+-]+)\s*,\s*([\d.e+-]+)\s*\}")
EXPRESSION = re.compile(r"\$\{oc\.eval:\s*(['\"]?)([^${}]*)\1\s*\}")
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "mul": operator.mul,
    "muli": operator.mul,
    "divi": lambda left, right: left // max(right, 1),
    "addi": operator.add,
    "subi": operator.sub,
}
OF_JOB = ("container", "slurm", "job", "postprocess", "hydra")


def is_experiment(content: Mapping[str, Any], file: Path) -> bool:
    """Whether `content` has Hydra's defaults, and the repository's main configuration lies above it."""
    return isinstance(content.get("defaults"), list) and _root_of(file) is not None


def _root_of(file: Path) -> Path | None:
    return next((parent for parent in list(file.absolute().parents)[:8] if (parent / ROOT_FILE).is_file()), None)


def translate(content: Mapping[str, Any], file: Path, overrides: Mapping[str, Any]) -> Translation:
    """Translate an experiment. `overrides` are dotted keys, as on the command line. Raises BadData."""
    root = _root_of(file)
    if root is None:
        raise BadData(f"{ROOT_FILE} is not above it", "import it in a checkout of oellm-autoexp")
    composed = _compose(Files(root.parent), root, fill_environment(content), file.absolute(), "", 0)
    for key, value in overrides.items():
        *path, last = key.split(".")
        part: dict[str, Any] = {last: value}
        for name in reversed(path):
            part = {name: part}
        composed = merge(composed, part)
    if _is_sweep(composed.get("sweep")):
        raise BadData("a sweep trains several models", "import one of its runs: remove the sweep, and --set its values")
    backend = composed.get("backend")
    arguments = backend.get("megatron") if isinstance(backend, dict) else None
    if not isinstance(backend, dict) or not isinstance(arguments, dict):
        raise BadData("its backend is not Megatron-LM: lt-train reads those experiments", "import what its backend reads")
    if str(backend.get("launcher_script", "pretrain_gpt.py")).rpartition("/")[2] not in ("pretrain_gpt.py", ""):
        raise BadData(f"{backend['launcher_script']}: lt-train replaces pretrain_gpt.py")
    resolved = {str(key): _resolve(value, composed, arguments) for key, value in arguments.items() if key not in ("aux", "env")}
    return megatron_lm.translate(["pretrain_gpt.py", *words_of(resolved)], SOURCE)


def _is_sweep(sweep: Any) -> bool:
    return isinstance(sweep, dict) and any(value for key, value in sweep.items() if key not in ("type", "base_values"))


def _compose(files: Files, root: Path, content: dict[str, Any], file: Path, section: str, depth: int) -> dict[str, Any]:
    """Merge the files that Hydra's defaults list, in their order, and the file itself where the list says _self_.

    `section` is where the values of the file belong. All values are returned from the top.
    """
    if depth > DEEPEST:
        raise BadData(f"{file.name}: defaults name each other too deeply")
    entries = content.pop("defaults", [])
    if not isinstance(entries, list):
        raise BadData(f"{file.name}: defaults is no list")
    own = _under(section, content)
    merged: dict[str, Any] = {}
    for entry in entries if SELF in entries else [*entries, SELF]:
        merged = merge(merged, own if entry == SELF else _default(files, root, entry, file, section, depth))
    return merged


def _default(files: Files, root: Path, entry: Any, file: Path, section: str, depth: int) -> dict[str, Any]:
    """Read what an entry of a list of defaults names: a file beside it, or `group: name`, whose values stand under the group."""
    if isinstance(entry, str):
        path = _path(root, file, entry)
        return _compose(files, root, files.read(path), path, section, depth + 1)
    if not isinstance(entry, dict) or len(entry) != 1:
        raise BadData(f"{file.name}: {entry} is no entry of defaults")
    ((group, names),) = entry.items()
    group = str(group).removeprefix("override ").removeprefix("optional ")
    absolute = group.startswith("/")
    group, _, package = group.lstrip("/").partition("@")
    # Without the slash, a group lies beside the file.
    folder = root / group if absolute or file.parent == root else file.parent / group
    if group.partition("/")[0] in OF_JOB or names is None:
        return {}
    if group == "backend" and not str(names).startswith("megatron"):
        raise BadData(f"its backend is {names}: lt-train reads experiments of Megatron-LM", "import what its backend reads")
    merged: dict[str, Any] = {}
    for name in names if isinstance(names, list) else [names]:
        path = folder / f"{name}.yaml"
        merged = merge(merged, _compose(files, root, files.read(path), path, package or _group_of(root, folder), depth + 1))
    return merged


def _path(root: Path, file: Path, name: str) -> Path:
    return root / f"{name[1:]}.yaml" if name.startswith("/") else file.parent / f"{name}.yaml"


def _group_of(root: Path, folder: Path) -> str:
    """Return the dotted section of a group's folder. Experiments stand at the top."""
    resolved = folder.resolve()
    if root.resolve() not in resolved.parents:
        return ""
    parts = resolved.relative_to(root.resolve()).parts
    return "" if parts[0] == "experiments" else ".".join(parts)


def _under(section: str, values: dict[str, Any]) -> dict[str, Any]:
    """Put the values of a file under its section. A file that was composed already has those of its own groups there."""
    for name in reversed(section.split(".") if section and section != "_global_" else []):
        values = {name: values}
    return values


def _resolve(value: Any, composed: Mapping[str, Any], beside: Mapping[str, Any], depth: int = 0) -> Any:
    """Follow references to other values: ${a.b} from the top, ${.b} among those `beside` it. An unknown one stays."""
    if isinstance(value, list):
        return [_resolve(entry, composed, beside, depth + 1) for entry in value]
    if not isinstance(value, str) or "${" not in value or depth > 8:
        return value
    whole = REFERENCE.fullmatch(value)
    if whole is None:
        filled = REFERENCE.sub(lambda match: _as_text(_resolve(match[0], composed, beside, depth + 1), match[0]), value)
        computed = ARITHMETIC.fullmatch(filled)
        if computed:
            return OPERATIONS[computed[1]](_number(computed[2]), _number(computed[3]))
        expression = EXPRESSION.fullmatch(filled)
        if expression:
            return _evaluate(expression[2], value)
        return VARIABLE.sub(r"${\1}", filled)
    name = whole[1]
    target: Any = beside if name.startswith(".") else composed
    for part in name.removeprefix(".").split("."):
        target = target.get(part) if isinstance(target, dict) else None
    if target is None or isinstance(target, dict):
        return VARIABLE.sub(r"${\1}", value)
    return _resolve(target, composed, beside, depth + 1)


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)


def _evaluate(text: str, reference: str) -> Any:
    """Evaluate the Python expression of oc.eval with the interpreter of configurations. One that it cannot stays as it is."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        module = Module("expression", "", ast.Module([], []), is_package=False, shown=text)
        value = Interpreter(Path("/expression.py")).evaluate(tree.body, Scope({}, module))
    except (SyntaxError, ValueError, MemoryError, Raised):
        return reference
    return value if isinstance(value, int | float | str) else reference


def _as_text(value: Any, reference: str) -> str:
    """Write a value into a text, or leave the reference if it is not a plain one."""
    return str(value) if isinstance(value, str | int | float) else reference
