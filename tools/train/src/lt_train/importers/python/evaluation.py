"""Expressions: literals, names, attributes, calls, comprehensions, conditions."""

import ast
from collections.abc import Callable
from typing import Any

from lt_train.importers.python.builtin_functions import BuiltinFunctions
from lt_train.importers.python.core import Raised, first_unknown, kind_of
from lt_train.importers.python.operators import is_key
from lt_train.importers.python.values import (
    MISSING,
    Class,
    External,
    Function,
    Instance,
    LazyImport,
    Scope,
    Super,
    Unknown,
)


class Evaluation(BuiltinFunctions):
    """Evaluate expressions of the syntax tree."""

    def evaluate(self, node: ast.expr, scope: Scope) -> Any:
        self.limits.step()
        self.at(node, scope.module)
        evaluate: Callable[[Any, Scope], Any] | None = getattr(self, f"_evaluate_{type(node).__name__.lower()}", None)
        if evaluate is None:
            return self.unknown(f"{type(node).__name__} is not read")
        return evaluate(node, scope)

    def _evaluate_constant(self, node: ast.Constant, scope: Scope) -> Any:
        return self.limits.check(node.value)

    def _evaluate_name(self, node: ast.Name, scope: Scope) -> Any:
        value = scope.lookup(node.id)
        if value is MISSING:
            value = self.builtin(node.id)
        if value is MISSING:
            raise self.raised("NameError", f"{node.id} is not defined")
        return self.resolve_import(value) if isinstance(value, LazyImport) else value

    def _evaluate_attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        owner = self.evaluate(node.value, scope)
        value = self.attribute(owner, node.attr)
        if value is MISSING:
            self.at(node, scope.module)
            raise self.raised("AttributeError", f"{kind_of(owner)} has no attribute {node.attr}")
        return self.resolve_import(value) if isinstance(value, LazyImport) else value

    def _evaluate_list(self, node: ast.List, scope: Scope) -> Any:
        return self._entries(node.elts, scope)

    def _evaluate_tuple(self, node: ast.Tuple, scope: Scope) -> Any:
        return tuple(self._entries(node.elts, scope))

    def _evaluate_set(self, node: ast.Set, scope: Scope) -> Any:
        return self.as_set(self._entries(node.elts, scope))

    def _entries(self, nodes: list[ast.expr], scope: Scope) -> list[Any]:
        entries: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                value = self.evaluate(node.value, scope)
                entries.extend([value] if isinstance(value, Unknown) else self.iterate(value))
            else:
                entries.append(self.evaluate(node, scope))
        checked: list[Any] = self.limits.check(entries)
        return checked

    def _evaluate_dict(self, node: ast.Dict, scope: Scope) -> Any:
        table: dict[Any, Any] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.evaluate(value_node, scope)
            if key_node is None:
                if not isinstance(value, dict):
                    return value if isinstance(value, Unknown) else self.unknown(f"** of {kind_of(value)}")
                table.update(value)
                continue
            key = self.evaluate(key_node, scope)
            if isinstance(key, Unknown):
                return key
            if not is_key(key):
                return self.unknown(f"{kind_of(key)} as the key of a dictionary")
            table[key] = value
        return self.limits.check(table)

    def _evaluate_binop(self, node: ast.BinOp, scope: Scope) -> Any:
        left, right = self.evaluate(node.left, scope), self.evaluate(node.right, scope)
        self.at(node, scope.module)
        return self.binary(type(node.op), left, right)

    def _evaluate_unaryop(self, node: ast.UnaryOp, scope: Scope) -> Any:
        return self.unary(type(node.op), self.evaluate(node.operand, scope))

    def _evaluate_boolop(self, node: ast.BoolOp, scope: Scope) -> Any:
        is_and = isinstance(node.op, ast.And)
        value: Any = is_and
        for entry in node.values:
            value = self.evaluate(entry, scope)
            truth = self.truth(value)
            if isinstance(truth, Unknown) or truth is not is_and:
                return truth if isinstance(truth, Unknown) else value
        return value

    def condition(self, node: ast.expr, scope: Scope) -> bool | Unknown:
        """Return the truth of a condition. One false operand of `and` decides it, and one true operand of `or`."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            truth = self.condition(node.operand, scope)
            return truth if isinstance(truth, Unknown) else not truth
        if not isinstance(node, ast.BoolOp):
            return self.truth(self.evaluate(node, scope))
        is_and = isinstance(node.op, ast.And)
        unknown: Unknown | None = None
        for entry in node.values:
            try:
                truth = self.condition(entry, scope)
            except Raised as error:
                if unknown is None:
                    raise
                truth = Unknown(error.message, error.origin)
            if isinstance(truth, Unknown):
                unknown = unknown or truth
            elif truth is not is_and:
                return truth
        return unknown or is_and

    def _evaluate_compare(self, node: ast.Compare, scope: Scope) -> Any:
        left = self.evaluate(node.left, scope)
        result: Any = True
        for operator, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(right_node, scope)
            result = self.compare(type(operator), left, right)
            if isinstance(result, Unknown) or not result:
                return result
            left = right
        return result

    def _evaluate_ifexp(self, node: ast.IfExp, scope: Scope) -> Any:
        truth = self.condition(node.test, scope)
        if isinstance(truth, Unknown):
            return truth
        return self.evaluate(node.body if truth else node.orelse, scope)

    def _evaluate_namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.evaluate(node.value, scope)
        scope.names[node.target.id] = value
        return value

    def _evaluate_joinedstr(self, node: ast.JoinedStr, scope: Scope) -> Any:
        words: list[Any] = []
        for part in node.values:
            if not isinstance(part, ast.FormattedValue):
                words.append(self.evaluate(part, scope))
                continue
            value = self.evaluate(part.value, scope)
            specification = self.evaluate(part.format_spec, scope) if part.format_spec else ""
            unknown = first_unknown((value, specification))
            if unknown:
                words.append(unknown)
            elif part.conversion == ord("r") and isinstance(value, str):
                words.append(repr(value))
            else:
                words.append(self.show(value, specification))
        return first_unknown(words) or self.limits.check("".join(map(str, words)))

    def _evaluate_subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        value = self.evaluate(node.value, scope)
        if isinstance(value, Unknown):
            return value
        if isinstance(value, External | Class | Function):
            return value  # a generic type, as list[int] or run.Config[Trainer]
        if isinstance(node.slice, ast.Slice):
            parts = [
                self.evaluate(part, scope) if part else None for part in (node.slice.lower, node.slice.upper, node.slice.step)
            ]
            index: Any = first_unknown(parts) or slice(*parts)
        else:
            index = self.evaluate(node.slice, scope)
        self.at(node, scope.module)
        return self.item(value, index)

    def item(self, value: Any, index: Any) -> Any:
        """Return the entry `index` of a collection."""
        if isinstance(index, Unknown):
            return index
        if isinstance(value, Instance):
            getter = self.attribute(value, "__getitem__")
            return (
                self.unknown("an entry of an object")
                if isinstance(getter, Unknown) or getter is MISSING
                else self.call(getter, [index], {})
            )
        if not isinstance(value, dict | list | tuple | str | range) or (isinstance(value, dict) and not is_key(index)):
            return self.unknown(f"an entry of {kind_of(value)}")
        try:
            return value[index]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise self.raised(type(error).__name__, str(error)) from None

    def _evaluate_lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return Function("<lambda>", node, self.parameter_defaults(node.args, scope), scope)

    def parameter_defaults(self, parameters: ast.arguments, scope: Scope) -> dict[str, Any]:
        positional = [argument.arg for argument in (*parameters.posonlyargs, *parameters.args)]
        first = len(positional) - len(parameters.defaults)
        defaults = {name: self.evaluate(node, scope) for name, node in zip(positional[first:], parameters.defaults, strict=True)}
        for argument, node in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
            if node is not None:
                defaults[argument.arg] = self.evaluate(node, scope)
        return defaults

    def _evaluate_call(self, node: ast.Call, scope: Scope) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and scope.lookup("super") is MISSING:
            return self._super(node, scope)
        function = self.evaluate(node.func, scope)
        arguments = self._entries(node.args, scope)
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, scope)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
                keywords.update(value)
            else:
                unknown = value if isinstance(value, Unknown) else self.unknown(f"** of {kind_of(value)}")
                self.taint([*arguments, *keywords.values()], unknown)
                return unknown
        self.at(node, scope.module)
        return self.call(function, arguments, keywords)

    def _super(self, node: ast.Call, scope: Scope) -> Any:
        method: Scope | None = scope
        while method is not None and method.owner is None:
            method = method.parent
        if method is None or method.owner is None:
            return self.unknown("super() outside of a method")
        receiver = self.evaluate(node.args[1], scope) if len(node.args) > 1 else next(iter(method.names.values()), None)
        return Super(method.owner, receiver)

    def _evaluate_listcomp(self, node: ast.ListComp, scope: Scope) -> Any:
        return self._comprehend(node.generators, scope, lambda inner: self.evaluate(node.elt, inner))

    def _evaluate_generatorexp(self, node: ast.GeneratorExp, scope: Scope) -> Any:
        return self._comprehend(node.generators, scope, lambda inner: self.evaluate(node.elt, inner))

    def _evaluate_setcomp(self, node: ast.SetComp, scope: Scope) -> Any:
        entries = self._comprehend(node.generators, scope, lambda inner: self.evaluate(node.elt, inner))
        return entries if isinstance(entries, Unknown) else self.as_set(entries)

    def _evaluate_dictcomp(self, node: ast.DictComp, scope: Scope) -> Any:
        pairs = self._comprehend(
            node.generators, scope, lambda inner: (self.evaluate(node.key, inner), self.evaluate(node.value, inner))
        )
        if isinstance(pairs, Unknown):
            return pairs
        unknown = first_unknown(key for key, _ in pairs)
        if unknown or not all(is_key(key) for key, _ in pairs):
            return unknown or self.unknown("objects as keys of a dictionary")
        return dict(pairs)

    def _comprehend(self, generators: list[ast.comprehension], scope: Scope, entry: Callable[[Scope], Any]) -> Any:
        entries: list[Any] = []

        def nest(depth: int, inner: Scope) -> Unknown | None:
            if depth == len(generators):
                entries.append(entry(inner))
                return None
            generator = generators[depth]
            collection = self.evaluate(generator.iter, inner)
            if isinstance(collection, Unknown | External | Instance):
                return collection if isinstance(collection, Unknown) else self.unknown(f"the entries of {kind_of(collection)}")
            for value in self.iterate(collection):
                self.assign(generator.target, value, inner)
                truths = [self.condition(condition, inner) for condition in generator.ifs]
                unknown = first_unknown(truths)
                if unknown:
                    return unknown
                if all(truths):
                    unknown = nest(depth + 1, inner)
                    if unknown:
                        return unknown
            return None

        unknown = nest(0, Scope({}, scope.module, scope, owner=None))
        return unknown or self.limits.check(entries)

    def _evaluate_starred(self, node: ast.Starred, scope: Scope) -> Any:
        return self.evaluate(node.value, scope)
