"""Definitions: imports, functions, classes with their fields and enum members."""

import ast
from typing import Any

from lt_train.importers.python.consequences import Consequences
from lt_train.importers.python.values import (
    MISSING,
    Class,
    Decorated,
    EnumMember,
    External,
    Field,
    Function,
    LazyImport,
    Scope,
)


class Definitions(Consequences):
    """Interpret statements that give a name to a module, a function or a class."""

    def _run_import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            scope.names[alias.asname or name] = LazyImport(name, "", scope.module, node.lineno)

    def _run_importfrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        module = self.absolute_name(scope.module.name, scope.module.is_package, node.module or "", node.level)
        for alias in node.names:
            if alias.name == "*":
                scope.names.update(self.public_names(module, scope.module, node.lineno))
            else:
                scope.names[alias.asname or alias.name] = LazyImport(module, alias.name, scope.module, node.lineno)

    def absolute_name(self, importer: str, is_package: bool, module: str, level: int) -> str:
        """Return the name of the module that an import with `level` dots names."""
        if level == 0:
            return module
        parts = importer.split(".")
        parts = parts[: len(parts) - level + (1 if is_package else 0)]
        return ".".join([*parts, module] if module else parts)

    def public_names(self, module: str, importer: Any, line: int) -> dict[str, Any]:
        """Return what `from module import *` brings."""
        raise NotImplementedError

    def _run_functiondef(self, node: ast.FunctionDef, scope: Scope) -> None:
        owner = scope.owner if scope.is_class else None
        value: Any = Function(node.name, node, self.parameter_defaults(node.args, scope), scope, owner)
        for decorator_node in reversed(node.decorator_list):
            value = self.decorate(self.evaluate(decorator_node, scope), value)
        self.assign_name(node.name, value, scope)

    def _run_classdef(self, node: ast.ClassDef, scope: Scope) -> None:
        bases = [self.evaluate(base, scope) for base in node.bases]
        inside = f"{scope.owner.qualified_name}" if scope.is_class and scope.owner else scope.module.name
        owner = Class(node.name, f"{inside}.{node.name}", bases, {}, scope.module)
        names = [base.name for base in owner.externals() if isinstance(base, External)]
        owner.is_enum = any(name.startswith("enum.") for name in names) or any(
            isinstance(base, Class) and base.is_enum for base in bases
        )
        owner.is_plain_enum = owner.is_enum and bool({"builtins.str", "builtins.int", "enum.StrEnum", "enum.IntEnum"} & {*names})
        body = Scope({}, scope.module, scope, is_class=True, owner=owner)
        self.run(node.body, body)
        owner.namespace = body.names
        if owner.is_enum:
            self._make_members(owner)
        else:
            self._collect_fields(node, owner, body)
        value: Any = owner
        for decorator_node in reversed(node.decorator_list):
            value = self.decorate(self.evaluate(decorator_node, scope), value)
        self.assign_name(node.name, value, scope)

    def _make_members(self, owner: Class) -> None:
        members: dict[str, EnumMember] = {}
        for name, value in owner.namespace.items():
            if not name.startswith("_") and not isinstance(value, Function | LazyImport | Decorated):
                is_automatic = isinstance(value, External) and value.name == "enum.auto"
                members[name] = EnumMember(owner, name, len(members) + 1 if is_automatic else value)
        owner.namespace = {**owner.namespace, **members, "__members__": members}

    def _collect_fields(self, node: ast.ClassDef, owner: Class, body: Scope) -> None:
        """Note the annotated names as fields; they count if @dataclass decorates the class."""
        for statement in node.body:
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            name, annotation = statement.target.id, ast.unparse(statement.annotation)
            if annotation.startswith(("ClassVar", "typing.ClassVar")) or annotation.endswith("KW_ONLY"):
                continue
            value = body.names.get(name, MISSING)
            field = value if isinstance(value, Field) else Field(value)
            owner.own_fields[name] = field
            if isinstance(value, Field):
                owner.namespace.pop(name, None)
                if field.default is not MISSING:
                    owner.namespace[name] = field.default
