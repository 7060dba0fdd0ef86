"""Make the values unknown that statements under an unknown condition would change."""

import ast
from collections.abc import Iterator
from typing import Any

from lt_train.importers.python.assignment import Assignment
from lt_train.importers.python.calls import is_harmless
from lt_train.importers.python.core import Raised
from lt_train.importers.python.library import Library
from lt_train.importers.python.values import Function, Method, Scope, Unknown

# Nested calls under an unknown condition that are followed. A deeper call counts as changing all its arguments.
DEEPEST_UNKNOWN = 4


class Perhaps(Exception):
    """A return, break or continue under a condition that is unknown: what follows may not run."""

    def __init__(self, cause: Unknown, is_return: bool):
        super().__init__()
        self.cause, self.is_return = cause, is_return


class Consequences(Assignment, Library):
    """Make the targets of assignments unknown, and the objects that calls get."""

    def __init__(self) -> None:
        super().__init__()
        # Functions whose effects are being made unknown, the innermost last.
        self._unknown_calls: list[Function] = []

    def make_unknown(self, nodes: list[ast.stmt], scope: Scope, cause: Unknown, is_nested: bool = False) -> None:
        """Make all that `nodes` may change unknown, instead of running them.

        Raises Perhaps, unless `is_nested`, if one of them leaves the function or the loop.
        """
        exits: list[ast.stmt] = []
        for node in _statements(nodes):
            self.limits.step()
            if isinstance(node, ast.Return | ast.Break | ast.Continue):
                exits.append(node)
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
                targets = [node.target]
            elif isinstance(node, ast.With):
                targets = [item.optional_vars for item in node.items if item.optional_vars]
            for target in targets:
                self.assign_unknown(target, cause, scope)
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.assign_name(node.name, cause, scope)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    self.assign_name((alias.asname or alias.name).partition(".")[0], cause, scope)
            elif not isinstance(node, ast.Raise | ast.Assert):
                self._taint_calls(node, scope, cause)
        if exits and not is_nested:
            raise Perhaps(cause, any(isinstance(node, ast.Return) for node in exits))

    def assign_unknown(self, target: ast.expr, cause: Unknown, scope: Scope) -> None:
        try:
            if isinstance(target, ast.Tuple | ast.List):
                for entry in target.elts:
                    self.assign_unknown(entry, cause, scope)
            else:
                self.assign(target, cause, scope)
        except Raised:
            return

    def _taint_calls(self, node: ast.stmt, scope: Scope, cause: Unknown) -> None:
        """Taint the objects that calls in an expression of `node` may change: receivers and arguments."""
        nodes = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        if any(isinstance(entry, ast.Yield | ast.YieldFrom) for expression in nodes for entry in ast.walk(expression)):
            entries = scope.lookup("<entries>")
            if isinstance(entries, list):
                entries.append(cause)
        for call in (entry for expression in nodes for entry in ast.walk(expression) if isinstance(entry, ast.Call)):
            function = self._quietly(call.func, scope, cause)
            if is_harmless(function):
                continue
            arguments = [self._quietly(argument, scope, cause) for argument in call.args]
            keywords = {keyword.arg or "**": self._quietly(keyword.value, scope, cause) for keyword in call.keywords}
            if isinstance(function, Method) and isinstance(function.function, Function):
                arguments.insert(0, function.receiver)
                function = function.function
            if isinstance(function, Function) and not isinstance(function.node, ast.Lambda):
                self._make_call_unknown(function, arguments, keywords, cause)
                continue
            receiver = [self._quietly(call.func.value, scope, cause)] if isinstance(call.func, ast.Attribute) else []
            self.taint([*receiver, *arguments, *keywords.values()], cause)

    def _quietly(self, node: ast.expr, scope: Scope, cause: Unknown) -> Any:
        """Evaluate a name or a chain of attributes. Other expressions could run code, and count as unknown."""
        inner = node
        while isinstance(inner, ast.Attribute):
            inner = inner.value
        if not isinstance(inner, ast.Name):
            return cause
        try:
            return self.evaluate(node, scope)
        except Raised:
            return cause

    def _make_call_unknown(self, function: Function, arguments: list[Any], keywords: dict[str, Any], cause: Unknown) -> None:
        """Make all that a call of a function may change unknown."""
        try:
            names = self.bind(function, arguments, keywords)
        except Raised:
            names = None
        if names is None or function in self._unknown_calls or len(self._unknown_calls) > DEEPEST_UNKNOWN:
            self.taint([*arguments, *keywords.values()], cause)
            return
        body = [] if isinstance(function.node, ast.Lambda) else function.node.body
        self._unknown_calls.append(function)
        try:
            scope = Scope(names, function.scope.module, function.scope, owner=function.owner)
            self.make_unknown(body, scope, cause, is_nested=True)
        finally:
            self._unknown_calls.pop()

    def loop_unknown(self, nodes: list[ast.stmt], scope: Scope, cause: Unknown) -> None:
        try:
            self.make_unknown(nodes, scope, cause)
        except Perhaps as perhaps:
            if perhaps.is_return:
                raise


def _statements(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield `nodes` and the statements inside of them, except in functions and classes."""
    for node in nodes:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, name, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)
