"""Functions of Python and of its library that the interpreter provides. All others are unknown."""

import math
from collections.abc import Callable
from typing import Any

from lt_train.importers.python.calls import Calls
from lt_train.importers.python.core import first_unknown, kind_of, words
from lt_train.importers.python.limits import LONGEST
from lt_train.importers.python.operators import is_key, is_scalar, range_of
from lt_train.importers.python.values import (
    MISSING,
    Builtin,
    Class,
    Decorated,
    EnumMember,
    External,
    Function,
    Instance,
    Method,
    Partial,
    Unknown,
    is_same,
)

NUMERIC: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "round": round,
    "divmod": divmod,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.sqrt": math.sqrt,
    "math.log2": math.log2,
    "math.log": math.log,
    "math.log10": math.log10,
    "math.gcd": math.gcd,
    "math.prod": math.prod,
    "math.isclose": math.isclose,
}
CONSTANTS = {"math.pi": math.pi, "math.inf": math.inf, "typing.TYPE_CHECKING": False, "math.e": math.e}
TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float,),
    "bool": (bool,),
    "list": (list,),
    "tuple": (tuple,),
    "dict": (dict,),
    "set": (set,),
    "frozenset": (frozenset,),
    "bytes": (bytes,),
}
NEUTRAL = words("print warnings.warn logging.info logging.warning typing.cast_none builtins.breakpoint_none gc.collect")
SEQUENCES = words("list tuple set frozenset sorted reversed enumerate zip sum min max any all map filter len dict")
PYTHON = words(
    "isinstance issubclass hasattr getattr setattr type str int float bool repr range callable vars id hash iter "
    "next super object staticmethod classmethod property print"
)


class BuiltinFunctions(Calls):
    """Look up functions by the name that a program knows them by."""

    def builtin(self, name: str) -> Any:
        """Return the builtin function or type `name`, or MISSING."""
        if name in ("NotImplemented", "Ellipsis", "__debug__"):
            return self.unknown(name)
        if name in SEQUENCES | PYTHON | NUMERIC.keys() or name.endswith(("Error", "Exception", "Warning")) or name in TYPES:
            return External(f"builtins.{name}")
        if name in ("open", "eval", "exec", "compile", "__import__", "globals", "locals", "input", "breakpoint", "delattr"):
            return External(f"builtins.{name}")
        return MISSING

    def constant(self, name: str) -> Any:
        """Return a constant of Python's library, or MISSING."""
        return CONSTANTS.get(name, MISSING)

    def call_external(self, function: External, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        name = function.name.removeprefix("builtins.")
        provided: Callable[..., Any] | None = getattr(self, f"_python_{name.replace('.', '_')}", None)
        if provided is not None:
            return provided(*arguments, **keywords)
        if name in NUMERIC:
            return self._numeric(name, arguments, keywords)
        if name in NEUTRAL:
            return None
        if name in TYPES and not arguments and not keywords:
            return TYPES[name][0]()
        return super().call_external(function, arguments, keywords)

    def _numeric(self, name: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        unknown = first_unknown((*arguments, *keywords.values()))
        if unknown:
            return unknown
        if not all(map(is_scalar, [entry for entry in arguments if not isinstance(entry, list | tuple)])):
            return self.unknown(f"{name} of an object")
        try:
            return self.limits.check(NUMERIC[name](*arguments, **keywords))
        except (TypeError, ValueError, OverflowError) as error:
            raise self.raised(type(error).__name__, str(error)) from None

    def as_set(self, entries: Any) -> Any:
        """Return the set of `entries`, or an Unknown if one of them is unknown or has parts."""
        entries = list(self.iterate(entries))
        unknown = first_unknown(entries)
        if unknown or not all(map(is_key, entries)):
            return unknown or self.unknown("a set of objects")
        return set(entries)

    def _entries_of(self, value: Any) -> Any:
        """Return the entries of a collection, or an Unknown."""
        if isinstance(value, Unknown):
            return value
        if isinstance(value, External | Instance | Method | Function):
            return self.unknown(f"the entries of {kind_of(value)}")
        return self.limits.check(list(self.iterate(value)))

    def _python_list(self, value: Any = ()) -> Any:
        return self._entries_of(value)

    def _python_tuple(self, value: Any = ()) -> Any:
        entries = self._entries_of(value)
        return entries if isinstance(entries, Unknown) else tuple(entries)

    def _python_set(self, value: Any = ()) -> Any:
        return value if isinstance(value, Unknown) else self.as_set(value)

    def _python_frozenset(self, value: Any = ()) -> Any:
        entries = self._python_set(value)
        return frozenset(entries) if isinstance(entries, set) else entries

    def _python_dict(self, value: Any = (), **keywords: Any) -> Any:
        if isinstance(value, dict):
            return {**value, **keywords}
        entries = self._entries_of(value)
        if isinstance(entries, Unknown):
            return entries
        pairs = [tuple(self.iterate(pair)) for pair in entries]
        if any(len(pair) != 2 or not is_key(pair[0]) for pair in pairs):
            return self.unknown("a dictionary of objects")
        return {**dict(pairs), **keywords}

    def _python_sorted(self, value: Any, **keywords: Any) -> Any:
        entries = self._entries_of(value)
        if isinstance(entries, Unknown):
            return entries
        if "key" in keywords or not all(map(is_scalar, entries)):
            return self.unknown("a sort of objects")
        try:
            return sorted(entries, **keywords)
        except TypeError as error:
            raise self.raised("TypeError", str(error)) from None

    def _python_reversed(self, value: Any) -> Any:
        entries = self._entries_of(value)
        return entries if isinstance(entries, Unknown) else entries[::-1]

    def _python_enumerate(self, value: Any, start: int = 0) -> Any:
        entries = self._entries_of(value)
        return entries if isinstance(entries, Unknown) else list(enumerate(entries, start))

    def _python_zip(self, *values: Any, **keywords: Any) -> Any:
        columns = [self._entries_of(value) for value in values]
        return first_unknown(columns) or list(zip(*columns, strict=False))

    def _python_map(self, function: Any, *values: Any) -> Any:
        columns = [self._entries_of(value) for value in values]
        return first_unknown(columns) or [self.call(function, list(row), {}) for row in zip(*columns, strict=False)]

    def _python_filter(self, function: Any, value: Any) -> Any:
        entries = self._entries_of(value)
        if isinstance(entries, Unknown):
            return entries
        truths = [self.truth(entry if function is None else self.call(function, [entry], {})) for entry in entries]
        return first_unknown(truths) or [entry for entry, truth in zip(entries, truths, strict=True) if truth]

    def _python_any(self, value: Any) -> Any:
        entries = self._entries_of(value)
        if isinstance(entries, Unknown):
            return entries
        truths = [self.truth(entry) for entry in entries]
        return True if any(truth is True for truth in truths) else first_unknown(truths) or False

    def _python_all(self, value: Any) -> Any:
        entries = self._entries_of(value)
        if isinstance(entries, Unknown):
            return entries
        truths = [self.truth(entry) for entry in entries]
        return False if any(truth is False for truth in truths) else first_unknown(truths) or True

    def _python_len(self, value: Any) -> Any:
        if isinstance(value, Unknown):
            return value
        if isinstance(value, str | list | tuple | dict | set | frozenset | range | bytes):
            return len(value)
        return self.unknown(f"the length of {kind_of(value)}")

    def _python_sum(self, value: Any, start: Any = 0) -> Any:
        return self._of_scalars(lambda entries: sum(entries, start), value)

    def _python_min(self, *values: Any, **keywords: Any) -> Any:
        return self._extreme(min, values, keywords)

    def _python_max(self, *values: Any, **keywords: Any) -> Any:
        return self._extreme(max, values, keywords)

    def _extreme(self, function: Callable[..., Any], values: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if "key" in keywords:
            return self.unknown(f"{function.__name__} by a key")
        return self._of_scalars(lambda entries: function(entries, **keywords), values[0] if len(values) == 1 else list(values))

    def _of_scalars(self, function: Callable[[list[Any]], Any], value: Any) -> Any:
        entries = self._entries_of(value)
        if isinstance(entries, Unknown):
            return entries
        unknown = first_unknown(entries)
        if unknown or not all(map(is_scalar, entries)):
            return unknown or self.unknown("a computation with objects")
        try:
            return self.limits.check(function(entries))
        except (TypeError, ValueError) as error:
            raise self.raised(type(error).__name__, str(error)) from None

    def _python_str(self, value: Any = "") -> Any:
        if isinstance(value, External) and value.name.startswith("torch."):
            return value.name
        return value if isinstance(value, Unknown) else self.show(value)

    def _python_repr(self, value: Any) -> Any:
        if isinstance(value, Unknown):
            return value
        return self.limits.check(repr(value)) if is_scalar(value) else self.unknown("the text of an object")

    def _python_int(self, value: Any = 0, base: Any = None) -> Any:
        return self._convert(int, value) if base is None else self.unknown("a number of another base")

    def _python_float(self, value: Any = 0.0) -> Any:
        return self._convert(float, value)

    def _convert(self, kind: Callable[[Any], Any], value: Any) -> Any:
        if isinstance(value, Unknown):
            return value
        if not is_scalar(value):
            return self.unknown(f"a number of {kind_of(value)}")
        try:
            return self.limits.check(kind(value))
        except (TypeError, ValueError, OverflowError) as error:
            raise self.raised(type(error).__name__, str(error)[:200]) from None

    def _python_bool(self, value: Any = False) -> Any:
        return self.truth(value)

    def _python_range(self, *bounds: Any) -> Any:
        unknown = first_unknown(bounds)
        if unknown:
            return unknown
        try:
            numbers = range(*bounds)
        except (TypeError, ValueError) as error:
            raise self.raised(type(error).__name__, str(error)) from None
        if max(map(abs, bounds)) > LONGEST:
            self.limits.check(range_of(LONGEST + 1))
        return numbers

    def _python_callable(self, value: Any) -> Any:
        if isinstance(value, Unknown | External):
            return value if isinstance(value, Unknown) else self.unknown(f"{value.name} is not read")
        return isinstance(value, Function | Method | Partial | Builtin | Class | Decorated)

    def _python_hasattr(self, value: Any, name: Any) -> Any:
        if isinstance(value, Unknown) or isinstance(name, Unknown):
            return first_unknown((value, name))
        attribute = self.attribute(value, name)
        if isinstance(value, External):
            return self.unknown(f"whether {value.name} has {name}")
        if isinstance(attribute, Unknown) and isinstance(value, Instance) and name not in value.attributes:
            return attribute
        return attribute is not MISSING

    def _python_getattr(self, value: Any, name: Any, *default: Any) -> Any:
        unknown = first_unknown((value, name))
        if unknown:
            return unknown
        attribute = self.attribute(value, name)
        if attribute is MISSING:
            if not default:
                raise self.raised("AttributeError", f"{kind_of(value)} has no attribute {name}")
            return default[0]
        return attribute

    def _python_setattr(self, value: Any, name: Any, entry: Any) -> None:
        if isinstance(name, Unknown):
            self.taint((value,), name)
        else:
            self.set_attribute(value, name, entry)

    def _python_type(self, value: Any, *others: Any) -> Any:
        if others or isinstance(value, Unknown):
            return value if isinstance(value, Unknown) else self.unknown("a class that is made when it runs")
        if isinstance(value, Instance):
            return value.target
        if isinstance(value, EnumMember):
            return value.owner
        return (
            External(f"builtins.{type(value).__name__}")
            if is_scalar(value) or isinstance(value, list | dict | tuple | set)
            else (self.unknown(f"the type of {kind_of(value)}"))
        )

    def _python_isinstance(self, value: Any, kinds: Any) -> Any:
        if isinstance(value, Unknown):
            return value
        results = [self._is_instance(value, kind) for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]
        return True if any(result is True for result in results) else first_unknown(results) or False

    def _is_instance(self, value: Any, kind: Any) -> Any:
        if isinstance(kind, Unknown):
            return kind
        if isinstance(kind, External) and kind.name.removeprefix("builtins.") in TYPES and kind.name.startswith("builtins."):
            if isinstance(value, External):
                return self.unknown(f"{value.name} is not read") if not value.is_of_torch else False
            types = TYPES[kind.name.removeprefix("builtins.")]
            if isinstance(value, EnumMember):
                return value.owner.is_plain_enum and isinstance(value.value, types)
            return isinstance(value, types)
        if is_scalar(value) or isinstance(value, list | tuple | dict | set | range):
            is_number = isinstance(kind, External) and kind.last_name in ("Number", "Mapping", "Sequence", "Iterable", "Callable")
            return self.unknown(f"whether {kind_of(value)} is {kind_of(kind)}") if is_number else False
        owner = value.target if isinstance(value, Instance) else value.owner if isinstance(value, EnumMember) else None
        if isinstance(owner, Class):
            return self._python_issubclass(owner, kind)
        if isinstance(owner, External) and isinstance(kind, External) and owner == kind:
            return True
        if isinstance(value, Function | Method | Partial | Class) and isinstance(kind, Class):
            return False
        return self.unknown(f"whether {kind_of(value)} is {kind_of(kind)}")

    def _python_issubclass(self, owner: Any, kinds: Any) -> Any:
        if isinstance(owner, Unknown):
            return owner
        if not isinstance(owner, Class):
            return True if is_same(owner, kinds) else self.unknown(f"whether {kind_of(owner)} is {kind_of(kinds)}")
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            if any(is_same(ancestor, kind) for ancestor in owner.ancestors()):
                return True
        unread = [base for base in owner.externals() if isinstance(base, Unknown) or not self.is_known(base)]
        only_here = all(isinstance(kind, Class) for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        return False if only_here or not unread else self.unknown(f"whether {owner.name} is {kind_of(kinds)}")

    def _python_vars(self, value: Any) -> Any:
        return dict(value.attributes) if isinstance(value, Instance) and not value.tainted else self.unknown("vars()")

    def _python_next(self, value: Any, *default: Any) -> Any:
        entries = self._entries_of(value)
        if isinstance(entries, Unknown) or entries or default:
            return entries if isinstance(entries, Unknown) else (entries or default)[0]
        raise self.raised("StopIteration", "no entry")

    def _python_iter(self, value: Any) -> Any:
        return self._entries_of(value)

    def _python_object(self) -> Any:
        return Instance(External("builtins.object"), {}, self.origin)

    def _python_object___setattr__(self, instance: Any, name: Any, value: Any) -> None:
        if isinstance(name, Unknown):
            self.taint((instance,), name)
        else:
            self.store(instance, name, value)

    def _python_object___getattribute__(self, instance: Any, name: Any) -> Any:
        value = instance.attributes.get(name, MISSING) if isinstance(instance, Instance) else MISSING
        if value is MISSING:
            raise self.raised("AttributeError", str(name))
        return value
