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

    def binary(self, kind: type[ast.operator], left: Any, right: Any) -> Any:
        unknown = first_unknown((left, right))
        if unknown:
            return unknown
        left, right = _enum_value(left), _enum_value(right)
        if not isinstance(left, PLAIN) or not isinstance(right, PLAIN):
            if kind is ast.BitOr:  # int | None in an annotation
                return External("typing.Union")
            return self.unknown(f"the result for {kind_of(left)} and {kind_of(right)} is computed when it runs")
        self._check_size(kind, left, right)
        try:
            return self.limits.check(BINARY[kind](left, right))
        except (TypeError, ValueError, ZeroDivisionError, OverflowError, KeyError) as error:
            raise self.raised(type(error).__name__, str(error)) from None

    def _check_size(self, kind: type[ast.operator], left: Any, right: Any) -> None:
        sized = (str, bytes, list, tuple)
        if kind is ast.Mult:
            for text, count in ((left, right), (right, left)):
                if isinstance(text, sized) and isinstance(count, int) and len(text) * count > LONGEST:
                    self.limits.check(range_of(LONGEST + 1))
        elif kind is ast.Pow and isinstance(left, int) and isinstance(right, int):
            if right > 0 and left.bit_length() * right > MOST_BITS:
                self.limits.check(1 << (MOST_BITS + 1))
        elif kind is ast.LShift and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right > MOST_BITS:
                self.limits.check(1 << (MOST_BITS + 1))
        elif kind is ast.Mod and isinstance(left, str | bytes):
            self.check_width(PERCENT_WIDTH, str(left))
            if not all(map(is_scalar, right if isinstance(right, tuple) else (right,))):
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

    def compare(self, kind: type[ast.cmpop], left: Any, right: Any) -> Any:
        if kind in (ast.Is, ast.IsNot):
            same = self._is(left, right)
            return same if isinstance(same, Unknown) or kind is ast.Is else not same
        if kind in (ast.Eq, ast.NotEq):
            equal = self._equals(left, right)
            return equal if isinstance(equal, Unknown) or kind is ast.Eq else not equal
        if kind in (ast.In, ast.NotIn):
            inside = self._contains(left, right)
            return inside if isinstance(inside, Unknown) or kind is ast.In else not inside
        unknown = first_unknown((left, right))
        if unknown:
            return unknown
        left, right = _enum_value(left), _enum_value(right)
        if not is_scalar(left) or not is_scalar(right):
            return self.unknown(f"{kind_of(left)} and {kind_of(right)} are compared when it runs")
        try:
            return ORDER[kind](left, right)
        except TypeError as error:
            raise self.raised("TypeError", str(error)) from None

    def _is(self, left: Any, right: Any) -> Any:
        unknown = first_unknown((left, right))
        if unknown:
            return unknown
        if isinstance(left, External) and isinstance(right, External):
            return self._equals(left, right)
        for value, other in ((left, right), (right, left)):
            if isinstance(value, External) and other is None:
                return False if value.is_class or value.is_of_torch else self.unknown(f"{value.name} is not read")
        if isinstance(left, str | int | float | tuple) and isinstance(right, str | int | float | tuple):
            return type(left) is type(right) and left == right
        return left is right

    def _equals(self, left: Any, right: Any) -> Any:
        self.limits.step()
        unknown = first_unknown((left, right))
        if unknown:
            return unknown
        if isinstance(left, External) or isinstance(right, External):
            if isinstance(left, External) and isinstance(right, External):
                is_clear = left == right or (left.is_of_torch and right.is_of_torch)
                return (
                    _canonical(left) == _canonical(right)
                    if is_clear
                    else self.unknown(f"{left.name} and {right.name} are not read")
                )
            external, other = (left, right) if isinstance(left, External) else (right, left)
            if external.is_class or external.is_of_torch:
                return False
            return self.unknown(f"{external.name} is not read") if not isinstance(other, Class) else False
        if isinstance(left, EnumMember) and isinstance(right, EnumMember):
            return left is right
        if isinstance(left, EnumMember) or isinstance(right, EnumMember):
            member, other = (left, right) if isinstance(left, EnumMember) else (right, left)
            return member.owner.is_plain_enum and is_scalar(other) and member.value == other
        if isinstance(left, Instance) and isinstance(right, Instance):
            return True if left is right else self.unknown("objects are compared when it runs")
        if isinstance(left, list | tuple) and isinstance(right, list | tuple) and type(left) is type(right):
            if len(left) != len(right):
                return False
            results = [self._equals(*pair) for pair in zip(left, right, strict=True)]
            return False if any(result is False for result in results) else first_unknown(results) or True
        if isinstance(left, dict) and isinstance(right, dict):
            if left.keys() != right.keys():
                return False
            results = [self._equals(value, right[key]) for key, value in left.items()]
            return False if any(result is False for result in results) else first_unknown(results) or True
        return bool(left == right) if is_scalar(left) or is_scalar(right) or isinstance(left, set | range) else left is right

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
