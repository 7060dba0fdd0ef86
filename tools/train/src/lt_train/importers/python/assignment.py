"""Assignments to names, attributes and entries."""

import ast
from typing import Any

from lt_train.importers.python.core import kind_of
from lt_train.importers.python.evaluation import Evaluation
from lt_train.importers.python.operators import is_key
from lt_train.importers.python.values import External, Instance, Scope, Unknown


class Assignment(Evaluation):
    """Store values. What is stored at an unknown place makes the whole collection unknown."""

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Assign `value` to a name, an attribute, an entry, or several of them."""
        self.limits.step()
        if isinstance(target, ast.Name):
            self.assign_name(target.id, value, scope)
        elif isinstance(target, ast.Attribute):
            owner = self.evaluate(target.value, scope)
            self.at(target, scope.module)
            self.set_attribute(owner, target.attr, value)
        elif isinstance(target, ast.Subscript):
            self._assign_item(target, value, scope)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value, scope)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value, scope)

    def assign_name(self, name: str, value: Any, scope: Scope) -> None:
        if name in scope.outer_names:
            outer = scope.parent
            while outer is not None and name not in outer.names:
                outer = outer.parent
            scope = outer or scope.module.scope or scope
        scope.names[name] = value

    def _assign_item(self, target: ast.Subscript, value: Any, scope: Scope) -> None:
        owner = self.evaluate(target.value, scope)
        if isinstance(owner, Unknown | External):
            return
        index = self.unknown("a slice") if isinstance(target.slice, ast.Slice) else self.evaluate(target.slice, scope)
        self.at(target, scope.module)
        if isinstance(owner, Instance):
            self.taint((owner,), self.unknown("an entry of an object is set"))
        elif isinstance(index, Unknown) or not isinstance(owner, dict | list) or not is_key(index):
            cause = index if isinstance(index, Unknown) else self.unknown(f"an entry of {kind_of(owner)} is set")
            self.taint((owner,), cause)
        else:
            try:
                owner[index] = value
            except (IndexError, TypeError) as error:
                raise self.raised(type(error).__name__, str(error)) from None
            self.limits.check(owner)

    def _unpack(self, targets: list[ast.expr], value: Any, scope: Scope) -> None:
        if isinstance(value, Unknown | External | Instance):
            cause = value if isinstance(value, Unknown) else self.unknown(f"the entries of {kind_of(value)}")
            for target in targets:
                self.assign(target, cause, scope)
            return
        entries = list(self.iterate(value))
        starred = next((index for index, target in enumerate(targets) if isinstance(target, ast.Starred)), None)
        if starred is not None:
            behind = len(targets) - starred - 1
            middle = entries[starred : len(entries) - behind]
            entries = [*entries[:starred], middle, *entries[len(entries) - behind :]]
        if len(entries) != len(targets):
            raise self.raised("ValueError", f"{len(entries)} values for {len(targets)} names")
        for target, entry in zip(targets, entries, strict=True):
            self.assign(target, entry, scope)
