"""Functions of dataclasses, copy, functools, os.path and nemo_run, which configurations are built with."""

import posixpath
from collections.abc import Callable
from typing import Any

from lt_train.importers.python.builtin_functions import BuiltinFunctions
from lt_train.importers.python.core import first_unknown, kind_of, words
from lt_train.importers.python.values import (
    MISSING,
    Builtin,
    Class,
    Decorated,
    External,
    Field,
    Function,
    Instance,
    Partial,
    Unknown,
)

DEEPEST_COPY = 100
# Decorators of other packages that change nothing about the values that a function returns.
IDENTITY = words(
    "nemo_run.cli.factory nemo_run.autoconvert nemo_run.cli.entrypoint torch.no_grad abc.abstractmethod "
    "functools.cache functools.lru_cache functools.wraps typing.overload typing.final typing.runtime_checkable "
    "contextlib.contextmanager experimental_fn experimental_cls deprecated typing_extensions.deprecated "
    "typing_extensions.override typing.override warnings.deprecated torch.compiler.disable torch.jit.script"
)
METHOD_KINDS = frozenset({"property", "staticmethod", "classmethod", "functools.cached_property"})
CONFIGURED = frozenset({"nemo_run.Config", "nemo_run.Partial", "nemo_run.config.Config", "nemo_run.config.Partial"})


class Library(BuiltinFunctions):
    """Provide the functions of Python's library and of nemo_run."""

    def decorate(self, decorator: Any, value: Any) -> Any:
        """Apply a decorator. That of another package makes the result unknown, unless it is known to change nothing."""
        name = decorator.name.removeprefix("builtins.") if isinstance(decorator, External) else ""
        if name in METHOD_KINDS:
            return Decorated("property" if name.endswith("property") else name, value)
        if name in ("dataclasses.dataclass", "pydantic.dataclasses.dataclass") and isinstance(value, Class):
            return self.call(self._python_dataclasses_dataclass(), [value], {})
        if name in IDENTITY or name.rpartition(".")[2] in ("experimental_fn", "experimental_api", "deprecated"):
            return value
        if isinstance(decorator, External | Unknown):
            return value if isinstance(value, Class) else self.unknown(f"the decorator {kind_of(decorator)} is not read")
        return self.call(decorator, [value], {})

    def call_external(self, function: External, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        if function.name in CONFIGURED and arguments:
            return self._configured(arguments[0], arguments[1:], keywords)
        if function.name in IDENTITY:
            return Builtin("decorator", lambda value: value) if not arguments else arguments[0]
        return super().call_external(function, arguments, keywords)

    def _configured(self, target: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Make nemo_run's object of a class or function and its arguments, which is built later."""
        if isinstance(target, Unknown):
            return target
        if isinstance(target, Function):
            keywords = self.bind_partially(target, arguments, keywords)
        elif arguments:
            return self.unknown(f"positional arguments of {kind_of(target)}")
        return Instance(target, dict(keywords), self.origin, is_deferred=True)

    def bind_partially(self, function: Function, arguments: list[Any], keywords: dict[str, Any]) -> dict[str, Any]:
        positional = [argument.arg for argument in function.node.args.args]
        return dict(zip(positional, arguments, strict=False)) | keywords

    def _python_dataclasses_dataclass(self, *arguments: Any, **keywords: Any) -> Any:
        is_keyword_only = keywords.get("kw_only") is True

        def make(owner: Any) -> Any:
            if not isinstance(owner, Class):
                return owner
            owner.is_dataclass = True
            for name in owner.own_fields:
                field = owner.own_fields[name]
                field.is_keyword = field.is_keyword or is_keyword_only
            return owner

        return make(arguments[0]) if arguments else Builtin("dataclass", make)

    def _python_dataclasses_field(self, **keywords: Any) -> Any:
        default, factory = keywords.get("default", MISSING), keywords.get("default_factory", MISSING)
        is_argument, is_keyword = keywords.get("init", True), keywords.get("kw_only", False)
        return Field(default, factory, is_argument is not False, is_keyword is True)

    def _python_dataclasses_replace(self, instance: Any, **changes: Any) -> Any:
        if not isinstance(instance, Instance) or instance.tainted or not isinstance(instance.target, Class | External):
            return self.unknown("a copy of an object that is not read")
        fields = self.fields(instance.target)
        values = {name: value for name, value in instance.attributes.items() if name in fields and fields[name].is_argument}
        strangers = [name for name in changes if fields and name not in fields]
        if strangers and self.is_known(instance.target):
            raise self.raised("TypeError", f"{kind_of(instance)} has no field {strangers[0]}")
        return self.call(instance.target, [], {**values, **changes})

    def _python_dataclasses_fields(self, value: Any) -> Any:
        owner = value.target if isinstance(value, Instance) else value
        if not isinstance(owner, Class | External) or not self.is_known(owner):
            return self.unknown(f"the fields of {kind_of(value)}")
        return [
            Instance(External("dataclasses.Field"), {"name": name, "init": field.is_argument})
            for name, field in self.fields(owner).items()
        ]

    def _python_dataclasses_is_dataclass(self, value: Any) -> Any:
        owner = value.target if isinstance(value, Instance) else value
        return bool(self.fields(owner)) if isinstance(owner, Class) else self.unknown("whether it is a dataclass")

    def _python_dataclasses_asdict(self, value: Any, depth: int = 0) -> Any:
        if depth > DEEPEST_COPY:
            raise self.refuse("objects nested too deeply")
        self.limits.step()
        if isinstance(value, Instance):
            if value.tainted:
                return value.tainted
            names = [*self.fields(value.target)]
            return {name: self._python_dataclasses_asdict(value.attributes.get(name), depth + 1) for name in names}
        if isinstance(value, list | tuple):
            return type(value)(self._python_dataclasses_asdict(entry, depth + 1) for entry in value)
        if isinstance(value, dict):
            return {key: self._python_dataclasses_asdict(entry, depth + 1) for key, entry in value.items()}
        return value

    def _python_copy_deepcopy(self, value: Any) -> Any:
        return self._copy(value, {}, DEEPEST_COPY)

    def _python_copy_copy(self, value: Any) -> Any:
        return self._copy(value, {}, 1)

    def _copy(self, value: Any, copies: dict[int, Any], depth: int) -> Any:
        """Copy objects and collections, each of them once."""
        if id(value) in copies:
            return copies[id(value)]
        if depth < 0:
            raise self.refuse("objects nested too deeply")
        self.limits.step()
        is_deep = depth > 1

        def entry(part: Any) -> Any:
            return self._copy(part, copies, depth - 1) if is_deep else part

        if isinstance(value, Instance):
            copied = Instance(value.target, {}, value.origin, value.is_deferred, value.tainted)
            copies[id(value)] = copied
            copied.attributes.update({name: entry(part) for name, part in value.attributes.items()})
            return copied
        if isinstance(value, list):
            entries: list[Any] = []
            copies[id(value)] = entries
            entries.extend(entry(part) for part in value)
            return entries
        if isinstance(value, dict):
            table: dict[Any, Any] = {}
            copies[id(value)] = table
            table.update({key: entry(part) for key, part in value.items()})
            return table
        return (
            tuple(entry(part) for part in value) if isinstance(value, tuple) else set(value) if isinstance(value, set) else value
        )

    def _python_functools_partial(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        return Partial(function, list(arguments), keywords)

    def _python_functools_reduce(self, function: Any, entries: Any, *start: Any) -> Any:
        values = [*start, *self.iterate(entries)]
        result = values[0]
        for value in values[1:]:
            result = self.call(function, [result, value], {})
        return result

    def _python_typing_cast(self, kind: Any, value: Any) -> Any:
        return value

    def _python_os_getcwd(self) -> Any:
        return "."

    def _python_os_path_join(self, *parts: Any) -> Any:
        return self._path(posixpath.join, *parts)

    def _python_os_path_basename(self, path: Any) -> Any:
        return self._path(posixpath.basename, path)

    def _python_os_path_dirname(self, path: Any) -> Any:
        return self._path(posixpath.dirname, path)

    def _path(self, function: Callable[..., str], *parts: Any) -> Any:
        unknown = first_unknown(parts)
        if unknown or not all(isinstance(part, str) for part in parts):
            return unknown or self.unknown("a path")
        return self.limits.check(function(*parts))

    def _python_os_getenv(self, name: Any, default: Any = None) -> Any:
        """Read a variable of an empty environment, as for scripts."""
        self.notes.append(f"{self.origin}: {name} of the environment is taken as not set")
        return default

    _python_os_environ_get = _python_os_getenv

    def _python_enum_auto(self) -> Any:
        return External("enum.auto")

    def _python_itertools_chain(self, *values: Any) -> Any:
        return [entry for value in values for entry in self.iterate(value)]
