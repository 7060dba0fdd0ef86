"""Imports: modules of the repository are interpreted when a name of theirs is first read; all others are external."""

from pathlib import Path
from typing import Any

from lt_train.importers.python.consequences import Perhaps
from lt_train.importers.python.core import Raised
from lt_train.importers.python.repository import Repository
from lt_train.importers.python.statements import Left, Returned, Statements
from lt_train.importers.python.values import MISSING, External, LazyImport, Module, Scope, Unknown

# Names whose code asks a network or a device, and which `stand_ins` gives in their place.
STAND_INS = frozenset({"AutoBridge"})


class Interpreter(Statements):
    """Interpret a configuration and the modules of its repository that it imports."""

    def __init__(self, file: Path):
        super().__init__()
        self.repository = Repository(file)
        self._resolving: set[tuple[str, str]] = set()

    def read_module(self, module: Module) -> Scope:
        """Interpret the body of a module, once."""
        if module.scope is None:
            module.scope = Scope({"__name__": module.name, "__file__": Unknown("the place of the file", module.shown)}, module)
            line, current = self._line, self._module
            self.limits.enter()
            try:
                self.run(module.tree.body, module.scope)
            except (Returned, Left, Perhaps):
                pass
            finally:
                self.limits.leave()
                self._line, self._module = line, current
        return module.scope

    def resolve_import(self, lazy: LazyImport) -> Any:
        if not lazy.name:
            return self.repository.module(lazy.module) or self._package(lazy.module)
        key = (lazy.module, lazy.name)
        if lazy.name in STAND_INS and lazy.module.startswith("megatron.bridge"):
            return External(f"megatron.bridge.{lazy.name}")
        if key in self._resolving:
            return Unknown(f"{lazy.module}.{lazy.name} is imported in a circle", f"{lazy.importer.shown}:{lazy.line}")
        self._resolving.add(key)
        try:
            return self._resolve(lazy)
        finally:
            self._resolving.discard(key)

    def _resolve(self, lazy: LazyImport) -> Any:
        module = self.repository.module(lazy.module)
        if module is not None:
            value = self.read_module(module).names.get(lazy.name, MISSING)
            if isinstance(value, LazyImport) and (value.module, value.name) != (lazy.module, lazy.name):
                value = self.resolve_import(value)
            if value is not MISSING and not isinstance(value, LazyImport):
                return value
        inner = f"{lazy.module}.{lazy.name}"
        below = self.repository.module(inner)
        if below is not None:
            return below
        if module is None or self.repository.is_package(inner):
            return self.constant_or_external(inner)
        getter = module.scope.names.get("__getattr__", MISSING) if module.scope else MISSING
        if getter is not MISSING:
            return Unknown(f"{inner} is made when it is imported", f"{lazy.importer.shown}:{lazy.line}")
        raise Raised("ImportError", f"{lazy.module} has no {lazy.name}", f"{lazy.importer.shown}:{lazy.line}")

    def _package(self, name: str) -> Any:
        return External(name)

    def constant_or_external(self, name: str) -> Any:
        value = self.constant(name)
        return External(name) if value is MISSING else value

    def attribute(self, value: Any, name: str) -> Any:
        if isinstance(value, External):
            module = self.repository.module(f"{value.name}.{name}") if self.repository.is_package(value.name) else None
            if module is not None:
                return module
            return self.constant_or_external(f"{value.name}.{name}")
        return super().attribute(value, name)

    def store(self, target: Any, name: str, value: Any) -> None:
        if isinstance(target, Module):
            self.read_module(target).names[name] = value
        else:
            super().store(target, name, value)

    def public_names(self, module: str, importer: Module, line: int) -> dict[str, Any]:
        read = self.repository.module(module)
        if read is None or (read.scope is not None and (module, "*") in self._resolving):
            return {}
        self._resolving.add((module, "*"))
        names = self.read_module(read).names
        self._resolving.discard((module, "*"))
        listed = names.get("__all__")
        if isinstance(listed, list):
            return {name: names.get(name, LazyImport(module, name, importer, line)) for name in listed if isinstance(name, str)}
        return {name: value for name, value in names.items() if not name.startswith("_")}
