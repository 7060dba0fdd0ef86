"""A configuration in Python: the object that a function or a variable of the file has, with the values of --set."""

import ast
import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lt_shared.console import BadData, NoInput
from lt_train.importers.python.calls import parameters_of
from lt_train.importers.python.core import Raised, kind_of
from lt_train.importers.python.published_models import ModelInterpreter
from lt_train.importers.python.tree import Tree
from lt_train.importers.python.values import MISSING, Class, External, Function, Instance, LazyImport, Unknown

MOST_NAMES = 12
USAGE = "lt-train import recipe.py:FUNCTION"


class Configuration:
    """The object that a file in Python makes, and the interpreter that has read it.

    Raises BadData for a file that is not a configuration, or that needs more than the interpreter's bounds.
    """

    def __init__(self, file: Path, name: str, overrides: Mapping[str, Any]):
        self.interpreter = ModelInterpreter(file.absolute())
        self.tree = Tree(self.interpreter.arguments_of, self.interpreter.resolve_import)
        try:
            self.value = self._evaluate(name, overrides)
        except Raised as error:
            raise BadData(f"{error.origin}: the configuration raises {error.kind}: {error.message[:300]}", USAGE) from None

    @property
    def notes(self) -> list[str]:
        return self.interpreter.notes

    def _evaluate(self, name: str, overrides: Mapping[str, Any]) -> Instance:
        module = self.interpreter.repository.first_module()
        names = self.interpreter.read_module(module).names
        if not name:
            candidates = list(_functions(module.tree))
            shown = ", ".join(candidates[:MOST_NAMES]) + (", ..." if len(candidates) > MOST_NAMES else "")
            raise BadData("which function makes the configuration?", f"append :NAME, one of {shown}" if shown else "append :NAME")
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=1)
            raise NoInput(f"it has no {name}", f"did you mean {nearest[0]}?" if nearest else USAGE)
        value = names[name]
        if isinstance(value, LazyImport):
            value = self.interpreter.resolve_import(value)
        remaining = dict(overrides)
        if isinstance(value, Function):
            arguments = {key: remaining.pop(key) for key in parameters_of(value) if key in remaining}
            value = self.interpreter.call(value, [], arguments)
        elif isinstance(value, Class):
            value = self.interpreter.call(value, [], {})
        if isinstance(value, Unknown):
            raise BadData(f"{name} is not read: {value}", "import the file that the trainer writes, or give its command line")
        if not isinstance(value, Instance):
            raise BadData(f"{name} is {kind_of(value)}, not a configuration", USAGE)
        for key, entry in remaining.items():
            self._set(value, key, entry)
        return value

    def _set(self, root: Instance, key: str, entry: Any) -> None:
        """Set a value of the configuration by its dotted key, as on the trainer's command line."""
        owner: Any = root
        *path, last = key.lstrip("+").split(".")
        for part in path:
            owner = owner.get(part, MISSING) if isinstance(owner, dict) else self.interpreter.attribute(owner, part)
            if not isinstance(owner, Instance | dict):
                raise BadData(f"--set {key}: the configuration has no {part}", self._nearest(root, key))
        if isinstance(owner, dict):
            owner[last] = entry
            return
        if self.interpreter.attribute(owner, last) is MISSING:
            raise BadData(f"--set {key}: the configuration has no such key", self._nearest(owner, last))
        self.interpreter.set_attribute(owner, last, entry)

    def _nearest(self, owner: Instance, name: str) -> str:
        names = [*owner.attributes, *self.interpreter.fields(owner.target)]
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        return f"did you mean {nearest[0]}?" if nearest else f"it has {', '.join(sorted(names)[:MOST_NAMES])}"

    def known_tree(self) -> dict[str, Any]:
        """Return the configuration as nested tables. Raises BadData if unknown code had the whole of it."""
        tree: dict[str, Any] | Unknown = self.tree.convert(self.value)
        if isinstance(tree, Unknown):
            raise BadData(f"only a run of the configuration knows the value: {tree}", USAGE)
        return tree

    def call(self, module: str, function: str, *arguments: Any) -> Any:
        """Call a function of the file's repository. Returns MISSING if the repository lacks it."""
        value = self.interpreter.resolve_import(LazyImport(module, function, self.interpreter.repository.first_module(), 0))
        if isinstance(value, External | Unknown):
            return MISSING
        return self.interpreter.call(value, list(arguments), {})


def _functions(tree: ast.Module) -> Iterator[str]:
    """List the public functions of a module that need no argument."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            needed = len(node.args.args) - len(node.args.defaults)
            if needed <= 0:
                yield node.name


def target_name(instance: Instance) -> str:
    """Return the dotted path of the class or function that a configuration is of."""
    target = instance.target
    return target.name if isinstance(target, External) else str(target.qualified_name)
