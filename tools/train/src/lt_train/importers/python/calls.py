"""Calls: arguments bound to parameters, functions of the program, of Python, and of packages outside of the repository."""

import ast
import re
from typing import Any

from lt_train.importers.python.classes import Classes
from lt_train.importers.python.core import kind_of
from lt_train.importers.python.values import (
    MISSING,
    Builtin,
    Class,
    Decorated,
    External,
    Function,
    Instance,
    LazyImport,
    Method,
    Partial,
    Unknown,
)

# Functions of other packages that leave their arguments as they are.
HARMLESS = re.compile(
    r"(logging|warnings|logger|torch|os|pathlib|typing|time|socket|uuid|getpass|transformers|builtins|re|json|math|platform)\..*"
    r"|.*\.(logger|log|_logger)\.\w+|.*\.(is_\w+|has_\w+|warn\w*|info|debug|warning)"
)

# Functions that may change any name.
REFUSED = ("builtins.exec", "builtins.eval", "builtins.globals", "builtins.locals")


class Calls(Classes):
    """Call values. A call of unknown code has an unknown result, and may have changed the objects that it got."""

    def call(self, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        self.limits.step()
        if isinstance(function, LazyImport):
            function = self.resolve_import(function)
        if isinstance(function, Builtin):
            try:
                return function.call(*arguments, **keywords)
            except TypeError as error:
                raise self.raised("TypeError", f"{function.name}: {error}") from None
        if isinstance(function, Partial):
            return self.call(function.function, [*function.arguments, *arguments], {**function.keywords, **keywords})
        if isinstance(function, Method):
            return self.call(function.function, [function.receiver, *arguments], keywords)
        if isinstance(function, Decorated):
            return self.call(function.function, arguments, keywords)
        if isinstance(function, Function):
            return self._call_function(function, arguments, keywords)
        if isinstance(function, Class):
            return self.construct(function, arguments, keywords)
        if isinstance(function, External):
            return self.call_external(function, arguments, keywords)
        if isinstance(function, Instance):
            caller = self.attribute(function, "__call__")
            if caller is not MISSING and not isinstance(caller, Unknown):
                return self.call(caller, arguments, keywords)
            function = self.unknown(f"a call of an object of {kind_of(function)}")
        if isinstance(function, Unknown):
            self.taint([*arguments, *keywords.values()], function)
            return function
        raise self.raised("TypeError", f"{kind_of(function)} is not a function")

    def call_external(self, function: External, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Construct an object of another package's class, or return an unknown for a call of its function."""
        if function.name in REFUSED:
            raise self.refuse(f"{function.last_name}() would have to run")
        if function.is_class:
            fields = self.fields(function)
            if fields and not arguments:
                instance = Instance(function, {}, self.origin)
                strangers = [name for name in keywords if name not in fields]
                known = {name: value for name, value in keywords.items() if name in fields}
                self._fill(instance, fields, [], known, function)
                instance.attributes.update({name: keywords[name] for name in strangers})
                return instance
            return Instance(function, {**{f"_{index}": entry for index, entry in enumerate(arguments)}, **keywords}, self.origin)
        owner, _, method = function.name.rpartition(".")
        if method == "__init__" and arguments and External(owner).is_class:
            self.initialize(arguments[0], External(owner), arguments[1:], keywords)
            return None
        if method in ("__post_init__", "finalize") and External(owner).is_class:
            return None
        cause = self.unknown(f"{function.name}() is not in the repository")
        if not is_harmless(function):
            self.taint([*arguments, *keywords.values()], cause)
        return cause

    def _call_function(self, function: Function, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        names = self.bind(function, arguments, keywords)
        line, module = self._line, self._module
        self.limits.enter()
        try:
            return self.run_function(function, names)
        finally:
            self.limits.leave()
            self._line, self._module = line, module

    def bind(self, function: Function, arguments: list[Any], keywords: dict[str, Any]) -> dict[str, Any]:
        """Map the parameters of `function` to their values. Raises Raised for arguments that it does not take."""
        parameters = function.node.args
        positional = [argument.arg for argument in (*parameters.posonlyargs, *parameters.args)]
        names: dict[str, Any] = dict(zip(positional, arguments, strict=False))
        surplus = arguments[len(positional) :]
        if parameters.vararg is not None:
            names[parameters.vararg.arg] = tuple(surplus)
        elif surplus:
            raise self.raised("TypeError", f"{function.name}() takes {len(positional)} arguments, not {len(arguments)}")
        accepted = {*(argument.arg for argument in (*parameters.args, *parameters.kwonlyargs))}
        strangers: dict[str, Any] = {}
        for name, value in keywords.items():
            if name in names:
                raise self.raised("TypeError", f"{function.name}() got {name} twice")
            if name in accepted:
                names[name] = value
            else:
                strangers[name] = value
        if parameters.kwarg is not None:
            names[parameters.kwarg.arg] = strangers
        elif strangers:
            raise self.raised("TypeError", f"{function.name}() has no argument {next(iter(strangers))}")
        for name in (*positional, *(argument.arg for argument in parameters.kwonlyargs)):
            if name not in names:
                value = function.defaults.get(name, MISSING)
                if value is MISSING:
                    raise self.raised("TypeError", f"{function.name}() needs the argument {name}")
                names[name] = value
        return names


def is_harmless(function: Any) -> bool:
    """Whether a call of an external function leaves its arguments as they are."""
    return isinstance(function, External) and function.name != "builtins.setattr" and bool(HARMLESS.fullmatch(function.name))


def parameters_of(function: Function) -> list[str]:
    """List the names of a function's parameters, without those that take any number of arguments."""
    parameters: ast.arguments = function.node.args
    return [argument.arg for argument in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs)]
