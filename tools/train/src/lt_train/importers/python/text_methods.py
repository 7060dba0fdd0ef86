"""Methods of texts, lists, dictionaries and sets that the interpreter provides."""

import re
from collections.abc import Callable
from typing import Any

from lt_train.importers.python.core import first_unknown, words
from lt_train.importers.python.limits import LONGEST
from lt_train.importers.python.operators import Operators, is_key, is_scalar, range_of
from lt_train.importers.python.values import MISSING, Builtin, EnumMember, Instance, Unknown

# A replacement field that reaches into an object, or takes its width from an argument.
REACHING = re.compile(r"\{[^}:]*[.\[!]|:[^}]*\{")
WIDTH = re.compile(r"\d{5}")
FORMAT_WIDTH = re.compile(r"\{[^}]*:[^}]*\d{5}")
TEXT = words(
    "capitalize casefold count endswith find index isalnum isalpha isdigit islower isnumeric isspace isupper join "
    "lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split "
    "splitlines startswith strip swapcase title upper"
)
PADDED = words("center ljust rjust zfill")
LIST = words("append extend insert pop remove clear copy count index reverse sort")
DICT = words("get items keys values pop popitem setdefault update copy clear")
SET = words("add discard remove update union intersection difference issubset issuperset copy clear pop")
TUPLE = words("count index")
NUMBER = words("bit_length is_integer")


class Methods(Operators):
    """Methods of Python's own types."""

    def method(self, value: Any, name: str) -> Any:
        """Return the method `name` of a text, number or collection, or MISSING."""
        if isinstance(value, str):
            return self._text_method(value, name)
        for kind, names in ((list, LIST), (dict, DICT), (set, SET), (frozenset, SET), (tuple, TUPLE), (int | float, NUMBER)):
            if isinstance(value, kind):
                return self._checked(getattr(value, name), value) if name in names else MISSING
        return MISSING

    def _text_method(self, text: str, name: str) -> Any:
        if name == "format":
            return Builtin(name, lambda *arguments, **keywords: self._format(text, arguments, keywords))
        if name in PADDED:

            def pad(width: Any, *fill: Any) -> Any:
                if isinstance(width, int) and width > LONGEST:
                    self.limits.check(range_of(LONGEST + 1))
                return first_unknown((width, *fill)) or getattr(text, name)(width, *fill)

            return Builtin(name, pad)
        if name == "join":
            return Builtin(name, lambda entries: self._join(text, entries))
        if name == "replace":
            return Builtin(name, lambda *arguments: self._replace(text, *arguments))
        return self._checked(getattr(text, name), text) if name in TEXT else MISSING

    def _checked(self, function: Callable[..., Any], receiver: Any) -> Builtin:
        """Wrap a method. Texts take no unknown arguments; collections hold them as entries."""

        def run(*arguments: Any, **keywords: Any) -> Any:
            unknown = first_unknown((*arguments, *keywords.values()))
            if unknown and not _takes_unknown(function.__name__, receiver, arguments):
                self.taint((receiver,), unknown)
                return None if function.__name__ in ("extend", "update") else unknown
            if function.__name__ in ("extend", "update", "union", "join"):
                arguments = tuple(list(self.iterate(entry)) if not isinstance(entry, dict) else entry for entry in arguments)
            self._check_parts(function.__name__, receiver, arguments, keywords)
            try:
                result = function(*arguments, **keywords)
            except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
                raise self.raised(type(error).__name__, str(error)) from None
            self.limits.check(receiver, is_new=False)
            if function.__name__ in ("items", "keys", "values"):
                return list(result)
            return self.limits.check(result)

        return Builtin(function.__name__, run)

    def _check_parts(self, name: str, receiver: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Refuse calls that would make Python hash or compare nested collections, which takes exponential time."""
        if isinstance(receiver, dict | set | frozenset):
            parts = [entry for argument in arguments[:1] for entry in (argument if isinstance(argument, list) else [argument])]
            usable = all(is_key(entry) or isinstance(entry, dict) for entry in parts)
        elif name in ("index", "count", "remove"):
            usable = all(map(is_scalar, arguments)) and all(map(is_scalar, receiver))
        else:
            usable = name != "sort" or (all(map(is_scalar, receiver)) and "key" not in keywords)
        if not usable:
            raise self.refuse(f"{name} of objects is not read")

    def _join(self, text: str, entries: Any) -> Any:
        if isinstance(entries, Unknown):
            return entries
        words = [entry.value if isinstance(entry, EnumMember) else entry for entry in self.iterate(entries)]
        unknown = first_unknown(words)
        if unknown:
            return unknown
        if not all(isinstance(word, str) for word in words):
            raise self.raised("TypeError", "a text is joined of texts")
        if sum(map(len, words)) + len(text) * len(words) > LONGEST:
            self.limits.check(range_of(LONGEST + 1))
        return text.join(words)

    def _replace(self, text: str, old: Any, new: Any, count: Any = -1) -> Any:
        unknown = first_unknown((old, new, count))
        if unknown:
            return unknown
        if not isinstance(old, str) or not isinstance(new, str):
            raise self.raised("TypeError", "a text is replaced by a text")
        if (text.count(old) + 1) * len(new) + len(text) > LONGEST:
            self.limits.check(range_of(LONGEST + 1))
        return text.replace(old, new, count)

    def _format(self, text: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Format a text. Fields take plain values alone: {0.attribute} could reach into Python's objects."""
        unknown = first_unknown((*arguments, *keywords.values()))
        if unknown:
            return unknown
        values = (*arguments, *keywords.values())
        if not all(map(is_scalar, values)) or REACHING.search(text):
            return self.unknown("a format of objects")
        self.check_width(FORMAT_WIDTH, text)
        try:
            return self.limits.check(text.format(*arguments, **keywords))
        except (ValueError, IndexError, KeyError) as error:
            raise self.raised(type(error).__name__, str(error)) from None

    def show(self, value: Any, specification: str = "") -> Any:
        """Format a value for an f-string or for str()."""
        if isinstance(value, EnumMember):
            value = value.value
        if isinstance(value, Instance) or not isinstance(value, str | int | float | bool | list | tuple | dict | None):
            return self.unknown("the text of an object")
        if isinstance(value, list | tuple | dict) and (specification or not self._is_short(value)):
            return self.unknown("the text of a collection of objects")
        self.check_width(WIDTH, specification)
        try:
            return self.limits.check(format(value, specification))
        except ValueError as error:
            raise self.raised("ValueError", str(error)) from None

    def _is_short(self, value: Any) -> bool:
        """Whether a collection holds plain values alone, none of them nested."""
        entries = [*value, *value.values()] if isinstance(value, dict) else list(value)
        return all(map(is_scalar, entries)) and sum(len(entry) for entry in entries if isinstance(entry, str)) < LONGEST


def _takes_unknown(name: str, receiver: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether a method stores or returns its unknown arguments as they are."""
    if isinstance(receiver, list):
        return name in ("append", "insert") and not isinstance(arguments[0] if name == "insert" else None, Unknown)
    if isinstance(receiver, dict):
        return name in ("get", "pop", "setdefault", "update") and not isinstance(arguments[0] if arguments else None, Unknown)
    return isinstance(receiver, set) and name == "add"
