"""Statements: definitions, conditions, loops. A statement under an unknown condition makes what it changes unknown."""

import ast
from collections.abc import Callable
from typing import Any

from lt_train.importers.python.consequences import Perhaps
from lt_train.importers.python.core import Raised, kind_of
from lt_train.importers.python.definitions import Definitions
from lt_train.importers.python.values import (
    External,
    Function,
    Instance,
    Scope,
    Unknown,
)

LOOPS = 20_000


class Returned(Exception):
    def __init__(self, value: Any):
        super().__init__()
        self.value = value


class Left(Exception):
    """break or continue."""

    def __init__(self, is_break: bool):
        super().__init__()
        self.is_break = is_break


class Statements(Definitions):
    """Interpret statements in their order."""

    def run(self, nodes: list[ast.stmt], scope: Scope) -> None:
        for index, node in enumerate(nodes):
            self.limits.step()
            self.at(node, scope.module)
            execute: Callable[[Any, Scope], None] | None = getattr(self, f"_run_{type(node).__name__.lower()}", None)
            try:
                if execute is None:
                    self.make_unknown([node], scope, self.unknown(f"{type(node).__name__} is not read"))
                else:
                    execute(node, scope)
            except Perhaps as perhaps:
                self.make_unknown(nodes[index + 1 :], scope, perhaps.cause, is_nested=True)
                raise
            except Raised as error:
                # The body of a module or a class goes on: the interpreter may lack what the statement needs.
                if scope.parent is not None and not scope.is_class:
                    raise
                self.make_unknown([node], scope, Unknown(f"{error.kind}: {error.message}", error.origin), is_nested=True)

    def run_function(self, function: Function, names: dict[str, Any]) -> Any:
        owner = function.owner or (function.scope.owner if isinstance(function.node, ast.Lambda) else None)
        scope = Scope(names, function.scope.module, function.scope, owner=owner)
        if isinstance(function.node, ast.Lambda):
            return self.evaluate(function.node.body, scope)
        if _is_generator(function.node):
            scope.names["<entries>"] = []
        try:
            self.run(function.node.body, scope)
        except Returned as returned:
            if "<entries>" not in scope.names:
                return returned.value
        except Perhaps as perhaps:
            return perhaps.cause
        return scope.names.get("<entries>")

    def _evaluate_yield(self, node: ast.Yield, scope: Scope) -> Any:
        value = self.evaluate(node.value, scope) if node.value else None
        entries = scope.lookup("<entries>")
        if isinstance(entries, list):
            entries.append(value)
            self.limits.check(entries)
        return None

    def _evaluate_yieldfrom(self, node: ast.YieldFrom, scope: Scope) -> Any:
        value = self.evaluate(node.value, scope)
        entries = scope.lookup("<entries>")
        if isinstance(entries, list):
            entries.extend([value] if isinstance(value, Unknown | External | Instance) else self.iterate(value))
            self.limits.check(entries)
        return None

    def _run_expr(self, node: ast.Expr, scope: Scope) -> None:
        if not isinstance(node.value, ast.Constant):
            self.evaluate(node.value, scope)

    def _run_assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.evaluate(node.value, scope)
        for target in node.targets:
            self.assign(target, value, scope)

    def _run_annassign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value, scope), scope)

    def _run_augassign(self, node: ast.AugAssign, scope: Scope) -> None:
        load = ast.copy_location(_loaded(node.target), node)
        value = self.evaluate(load, scope)
        addend = self.evaluate(node.value, scope)
        if isinstance(value, list) and isinstance(node.op, ast.Add) and not isinstance(addend, Unknown):
            value.extend(self.iterate(addend))
            self.limits.check(value)
        elif isinstance(value, dict) and isinstance(node.op, ast.BitOr) and isinstance(addend, dict):
            value.update(addend)
        else:
            self.assign(node.target, self.binary(type(node.op), value, addend), scope)

    def _run_if(self, node: ast.If, scope: Scope) -> None:
        truth = self.condition(node.test, scope)
        if isinstance(truth, Unknown):
            self.make_unknown([*node.body, *node.orelse], scope, truth)
        else:
            self.run(node.body if truth else node.orelse, scope)

    def _run_for(self, node: ast.For, scope: Scope) -> None:
        collection = self.evaluate(node.iter, scope)
        if isinstance(collection, Unknown | External | Instance):
            cause = collection if isinstance(collection, Unknown) else self.unknown(f"the entries of {kind_of(collection)}")
            self.assign_unknown(node.target, cause, scope)
            self.loop_unknown(node.body, scope, cause)
            return
        for value in self.iterate(collection):
            self.assign(node.target, value, scope)
            try:
                self.run(node.body, scope)
            except Left as left:
                if left.is_break:
                    return
            except Perhaps as perhaps:
                self.assign_unknown(node.target, perhaps.cause, scope)
                self.make_unknown(node.body, scope, perhaps.cause, is_nested=True)
                if perhaps.is_return:
                    raise
                return
        self.run(node.orelse, scope)

    def _run_while(self, node: ast.While, scope: Scope) -> None:
        for _ in range(LOOPS):
            truth = self.condition(node.test, scope)
            if isinstance(truth, Unknown):
                self.loop_unknown(node.body, scope, truth)
                return
            if not truth:
                self.run(node.orelse, scope)
                return
            try:
                self.run(node.body, scope)
            except Left as left:
                if left.is_break:
                    return
            except Perhaps as perhaps:
                self.make_unknown(node.body, scope, perhaps.cause, is_nested=True)
                if perhaps.is_return:
                    raise
                return
        raise self.refuse(f"a loop of more than {LOOPS:,} rounds")

    def _run_break(self, node: ast.Break, scope: Scope) -> None:
        raise Left(is_break=True)

    def _run_continue(self, node: ast.Continue, scope: Scope) -> None:
        raise Left(is_break=False)

    def _run_pass(self, node: ast.Pass, scope: Scope) -> None:
        return

    def _run_return(self, node: ast.Return, scope: Scope) -> None:
        raise Returned(self.evaluate(node.value, scope) if node.value else None)

    def _run_global(self, node: ast.Global, scope: Scope) -> None:
        scope.outer_names.update(node.names)

    def _run_nonlocal(self, node: ast.Nonlocal, scope: Scope) -> None:
        scope.outer_names.update(node.names)

    def _run_delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                scope.names.pop(target.id, None)
                continue
            owner = self.evaluate(target.value, scope) if isinstance(target, ast.Attribute | ast.Subscript) else None
            if isinstance(owner, Instance) and isinstance(target, ast.Attribute):
                owner.attributes.pop(target.attr, None)
            elif isinstance(target, ast.Subscript) and isinstance(owner, dict | list):
                key = self.evaluate(target.slice, scope)
                try:
                    del owner[key]
                except (KeyError, IndexError, TypeError) as error:
                    raise self.raised(type(error).__name__, str(error)) from None

    def _run_assert(self, node: ast.Assert, scope: Scope) -> None:
        try:
            truth = self.condition(node.test, scope)
        except Raised:
            return
        if truth is False:
            raise self.raised("AssertionError", ast.unparse(node.test)[:200])

    def _run_raise(self, node: ast.Raise, scope: Scope) -> None:
        exception = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        message: Any = ""
        if isinstance(node.exc, ast.Call) and node.exc.args:
            message = self.evaluate(node.exc.args[0], scope)
        self.at(node, scope.module)
        kind = ast.unparse(exception).rpartition(".")[2] if exception is not None else "Exception"
        raise self.raised(kind, message if isinstance(message, str) else "")

    def _run_try(self, node: ast.Try, scope: Scope) -> None:
        try:
            self.run(node.body, scope)
            self.run(node.orelse, scope)
        except Raised as error:
            handler = next((handler for handler in node.handlers if _catches(handler, error.kind)), None)
            if handler is None:
                raise
            if handler.name:
                scope.names[handler.name] = self.unknown(f"{error.kind}: {error.message}")
            self.run(handler.body, scope)
        finally:
            self.run(node.finalbody, scope)

    def _run_with(self, node: ast.With, scope: Scope) -> None:
        for item in node.items:
            value = self.evaluate(item.context_expr, scope)
            if item.optional_vars is not None:
                entered = value if isinstance(value, Unknown) else self.unknown(f"what {kind_of(value)} opens")
                self.assign_unknown(item.optional_vars, entered, scope)
        self.run(node.body, scope)


def _loaded(target: ast.expr) -> ast.expr:
    """Return the target of an assignment as an expression that reads it."""
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.Attribute(target.value, target.attr, ast.Load())
    return ast.Subscript(target.value, target.slice, ast.Load()) if isinstance(target, ast.Subscript) else target


def _is_generator(node: ast.FunctionDef) -> bool:
    queue: list[ast.AST] = list(node.body)
    while queue:
        entry = queue.pop()
        if isinstance(entry, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(entry, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            queue.extend(ast.iter_child_nodes(entry))
    return False


def _catches(handler: ast.ExceptHandler, kind: str) -> bool:
    if handler.type is None:
        return True
    names = [
        ast.unparse(entry).rpartition(".")[2]
        for entry in (handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type])
    ]
    parents = {"KeyError": "LookupError", "IndexError": "LookupError", "ModuleNotFoundError": "ImportError"}
    return bool({kind, parents.get(kind, ""), "Exception", "BaseException"} & {*names})
