"""Operators and comparisons on known values, with the sizes of results checked before they are computed."""

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from lt_train.importers.python.core import Core, first_unknown, kind_of
from lt_train.importers.python.limits import LONGEST, MOST_BITS
from lt_train.importers.python.values import Class, EnumMember, External, Instance, Unknown

BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
ORDER: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
ALIASES = {"torch.half": "torch.float16", "torch.float": "torch.float32", "torch.double": "torch.float64"}
# A width of five digits, or one that an argument gives.
PERCENT_WIDTH = re.compile(r"%[^a-zA-Z%]*(\d{5}|\*)")
PLAIN = (str, int, float, complex, bytes, list, tuple, dict, set, frozenset, range, type(None), type(...))


class Operators(Core):
    """Apply operators. A result that depends on an unknown value is unknown."""

    def binary(self, kind: type[ast.operator], lhs: Any, rhs: Any) -> Any:
        unknown = first_unknown((lhs, rhs))
        if unknown:
            return unknown
        lhs, rhs = _enum_value(lhs), _enum_value(rhs)
        if not isinstance(lhs, PLAIN) or not isinstance(rhs, PLAIN):
            if kind is ast.BitOr:  # int | None in an annotation
                return External("typing.Union")
            return self.unknown(f"the result for {kind_of(lhs)} and {kind_of(rhs)} is computed when it runs")
        self._check_size(kind, lhs, rhs)
        try:
            return self.limits.check(BINARY[kind](lhs, rhs))
        except (TypeError, ValueError, ZeroDivisionError, OverflowError, KeyError) as error:
            raise self.raised(type(error).__name__, str(error)) from None

    def _check_size(self, kind: type[ast.operator], lhs: Any, rhs: Any) -> None:
        sized = (str, bytes, list, tuple)
        if kind is ast.Mult:
            for text, count in ((lhs, rhs), (rhs, lhs)):
                if isinstance(text, sized) and isinstance(count, int) and len(text) * count > LONGEST:
                    self.limits.check(range_of(LONGEST + 1))
        elif kind is ast.Pow and isinstance(lhs, int) and isinstance(rhs, int):
            if rhs > 0 and lhs.bit_length() * rhs > MOST_BITS:
                self.limits.check(1 << (MOST_BITS + 1))
        elif kind is ast.LShift and isinstance(lhs, int) and isinstance(rhs, int):
            if lhs.bit_length() + rhs > MOST_BITS:
                self.limits.check(1 << (MOST_BITS + 1))
        elif kind is ast.Mod and isinstance(lhs, str | bytes):
            self.check_width(PERCENT_WIDTH, str(lhs))
            if not all(map(is_scalar, rhs if isinstance(rhs, tuple) else (rhs,))):
                raise self.refuse("the text of a collection")

    def check_width(self, pattern: re.Pattern[str], text: str) -> None:
        """Refuse a width or a precision of a format that is larger than a text may be."""
        if pattern.search(text):
            self.limits.check(range_of(LONGEST + 1))

    def unary(self, kind: type[ast.unaryop], value: Any) -> Any:
        if kind is ast.Not:
            truth = self.truth(value)
            return truth if isinstance(truth, Unknown) else not truth
        if isinstance(value, Unknown):
            return value
        try:
            return UNARY[kind](_enum_value(value))
        except TypeError as error:
            raise self.raised("TypeError", str(error)) from None

    def compare(self, kind: type[ast.cmpop], lhs: Any, rhs: Any) -> Any:
        if kind in (ast.Is, ast.IsNot):
            same = self._is(lhs, rhs)
            return same if isinstance(same, Unknown) or kind is ast.Is else not same
        if kind in (ast.Eq, ast.NotEq):
            equal = self._equals(lhs, rhs)
            return equal if isinstance(equal, Unknown) or kind is ast.Eq else not equal
        if kind in (ast.In, ast.NotIn):
            inside = self._contains(lhs, rhs)
            return inside if isinstance(inside, Unknown) or kind is ast.In else not inside
        unknown = first_unknown((lhs, rhs))
        if unknown:
            return unknown
        lhs, rhs = _enum_value(lhs), _enum_value(rhs)
        if not is_scalar(lhs) or not is_scalar(rhs):
            return self.unknown(f"{kind_of(lhs)} and {kind_of(rhs)} are compared when it runs")
        try:
            return ORDER[kind](lhs, rhs)
        except TypeError as error:
            raise self.raised("TypeError", str(error)) from None

    def _is(self, lhs: Any, rhs: Any) -> Any:
        unknown = first_unknown((lhs, rhs))
        if unknown:
            return unknown
        if isinstance(lhs, External) and isinstance(rhs, External):
            return self._equals(lhs, rhs)
        for value, other in ((lhs, rhs), (rhs, lhs)):
            if isinstance(value, External) and other is None:
                return False if value.is_class or value.is_of_torch else self.unknown(f"{value.name} is not read")
        if isinstance(lhs, str | int | float | tuple) and isinstance(rhs, str | int | float | tuple):
            return type(lhs) is type(rhs) and lhs == rhs
        return lhs is rhs

    def _equals(self, lhs: Any, rhs: Any) -> Any:
        self.limits.step()
        unknown = first_unknown((lhs, rhs))
        if unknown:
            return unknown
        if isinstance(lhs, External) or isinstance(rhs, External):
            if isinstance(lhs, External) and isinstance(rhs, External):
                is_clear = lhs == rhs or (lhs.is_of_torch and rhs.is_of_torch)
                return _canonical(lhs) == _canonical(rhs) if is_clear else self.unknown(f"{lhs.name} and {rhs.name} are not read")
            external, other = (lhs, rhs) if isinstance(lhs, External) else (rhs, lhs)
            if external.is_class or external.is_of_torch:
                return False
            return self.unknown(f"{external.name} is not read") if not isinstance(other, Class) else False
        if isinstance(lhs, EnumMember) and isinstance(rhs, EnumMember):
            return lhs is rhs
        if isinstance(lhs, EnumMember) or isinstance(rhs, EnumMember):
            member, other = (lhs, rhs) if isinstance(lhs, EnumMember) else (rhs, lhs)
            return member.owner.is_plain_enum and is_scalar(other) and member.value == other
        if isinstance(lhs, Instance) and isinstance(rhs, Instance):
            return True if lhs is rhs else self.unknown("objects are compared when it runs")
        if isinstance(lhs, list | tuple) and isinstance(rhs, list | tuple) and type(lhs) is type(rhs):
            if len(lhs) != len(rhs):
                return False
            results = [self._equals(*pair) for pair in zip(lhs, rhs, strict=True)]
            return False if any(result is False for result in results) else first_unknown(results) or True
        if isinstance(lhs, dict) and isinstance(rhs, dict):
            if lhs.keys() != rhs.keys():
                return False
            results = [self._equals(value, rhs[key]) for key, value in lhs.items()]
            return False if any(result is False for result in results) else first_unknown(results) or True
        return bool(lhs == rhs) if is_scalar(lhs) or is_scalar(rhs) or isinstance(lhs, set | range) else lhs is rhs

    def _contains(self, item: Any, container: Any) -> Any:
        if isinstance(container, Unknown):
            return container
        if isinstance(container, str):
            unknown = first_unknown((item,))
            return unknown or (isinstance(item, str) and item in container)
        if not isinstance(container, list | tuple | set | frozenset | dict | range):
            if isinstance(container, Class) and container.is_enum:
                return any(item is member or item == member.value for member in container.namespace["__members__"].values())
            return self.unknown(f"the contents of {kind_of(container)} are not read")
        if isinstance(item, Unknown):
            return item
        if isinstance(container, range):
            return isinstance(item, int) and item in container
        results = [self._equals(item, entry) for entry in self.iterate(container)]
        return True if any(result is True for result in results) else first_unknown(results) or False


def is_scalar(value: Any) -> bool:
    """Whether `value` has no parts, so that its text, hash and comparison take no more than its own length."""
    return isinstance(value, str | int | float | complex | bytes | None)


def is_key(value: Any) -> bool:
    """Whether `value` may be a key: hashing a nested tuple of Python takes time that doubles with each level."""
    if isinstance(value, tuple):
        return len(value) <= 64 and all(map(is_scalar, value))
    return is_scalar(value) or isinstance(value, EnumMember | External | Class)


def range_of(length: int) -> tuple[None, ...]:
    return (None,) * length


def _enum_value(value: Any) -> Any:
    return value.value if isinstance(value, EnumMember) and isinstance(value.value, str | int) else value


def _canonical(external: External) -> str:
    """Return the name of an external object. Types of torch have two names."""
    return ALIASES.get(external.name, external.name)
