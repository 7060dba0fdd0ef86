"""What all parts of the interpreter share: its limits, the line that it reads, and the parts that call each other."""

import abc
import ast
from collections.abc import Iterable, Iterator
from typing import Any

from lt_shared.console import BadData
from lt_train.importers.python.limits import Limits
from lt_train.importers.python.values import (
    MISSING,
    Class,
    External,
    Function,
    Instance,
    LazyImport,
    Module,
    Scope,
    Unknown,
    poison,
)


class Raised(Exception):
    """An exception that the interpreted program raises."""

    def __init__(self, kind: str, message: str, origin: str):
        super().__init__(message)
        self.kind, self.message, self.origin = kind, message, origin


class Core(abc.ABC):
    """Base of the interpreter. `notes` are remarks about code that the interpreter did not follow."""

    def __init__(self) -> None:
        self.limits = Limits()
        self.notes: list[str] = []
        self._line = 0
        self._module: Module | None = None

    @abc.abstractmethod
    def evaluate(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of an expression."""

    @abc.abstractmethod
    def call(self, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Call `function` with values."""

    @abc.abstractmethod
    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Assign `value` to a name, an attribute, an entry, or several of them."""

    @abc.abstractmethod
    def run_function(self, function: Function, names: dict[str, Any]) -> Any:
        """Interpret the body of `function` with its parameters in `names`."""

    @abc.abstractmethod
    def run(self, nodes: list[ast.stmt], scope: Scope) -> None:
        """Interpret statements in their order."""

    @abc.abstractmethod
    def resolve_import(self, lazy: LazyImport) -> Any:
        """Return the value that an import statement names."""

    @abc.abstractmethod
    def attribute(self, value: Any, name: str) -> Any:
        """Return the attribute `name` of `value`, or MISSING."""

    def at(self, node: ast.AST, module: Module) -> None:
        """Remember the line that is read."""
        self._line, self._module = getattr(node, "lineno", self._line), module

    @property
    def origin(self) -> str:
        """The line that is read, as FILE:LINE."""
        return f"{self._module.shown}:{self._line}" if self._module else "?"

    def unknown(self, reason: str) -> Unknown:
        return Unknown(reason, self.origin)

    def raised(self, kind: str, message: str) -> Raised:
        return Raised(kind, message, self.origin)

    def refuse(self, message: str) -> BadData:
        return BadData(f"{self.origin}: {message}", "--set KEY=VALUE sets a value of the result, --set NAME=VALUE a parameter")

    def taint(self, values: Iterable[Any], cause: Unknown) -> None:
        """Mark the objects that unknown code had in its hands, because it may have changed them."""
        for value in values:
            poison(value, cause)

    def truth(self, value: Any) -> bool | Unknown:
        """Return the truth of `value`, or an Unknown."""
        if isinstance(value, Unknown):
            return value
        if isinstance(value, External):
            return True if value.is_class or value.is_of_torch else self.unknown(f"{value.name} is not read")
        if isinstance(value, Instance | Class):
            return True
        return bool(value)

    def iterate(self, value: Any) -> Iterator[Any]:
        """Iterate over a known collection, a step for each entry. Raises Raised for a value that has no entries."""
        if isinstance(value, dict | list | tuple | set | frozenset | str | range | bytes):
            for entry in tuple(value) if not isinstance(value, range) else value:
                self.limits.step()
                yield entry
        elif isinstance(value, Class) and value.is_enum:
            yield from value.namespace.get("__members__", {}).values()
        else:
            raise self.raised("TypeError", f"{kind_of(value)} is not iterable")


def kind_of(value: Any) -> str:
    if isinstance(value, Instance):
        return kind_of(value.target)
    if isinstance(value, Class):
        return value.name
    if isinstance(value, External):
        return value.name
    return type(value).__name__


def words(text: str) -> frozenset[str]:
    """Return the set of the words of a text."""
    return frozenset(text.split())


def first_unknown(values: Iterable[Any]) -> Unknown | None:
    return next((value for value in values if isinstance(value, Unknown)), None)


__all__ = ["MISSING", "Core", "Raised", "first_unknown", "kind_of", "words"]
