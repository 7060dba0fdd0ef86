"""Read one line with a JSON parser, and say in words why it holds no document.

Lines come here that the compiled scan does not understand. orjson parses them first; if it refuses a line, Python's parser, which
also accepts the extensions of `json.dumps`, parses it (NaN, Infinity, lone surrogates in other keys). A lone surrogate in the
text is no Unicode text and cannot be tokenized: the line is bad, never silently changed.
"""

import json
from collections.abc import Iterable
from typing import Any

import orjson

from lt_preprocess.readers import text_keys

NAMED_KEYS = 8
NO_OBJECT_REASONS = ("not JSON", "not usable JSON", "not a JSON object", "invalid UTF-8")
"""How the reasons of lines begin that hold no JSON object at all."""


class Unusable(ValueError):
    """A line without a document; the message says why."""


def texts_of(line: bytes, json_keys: tuple[str, ...]) -> list[list[bytes]]:
    """The texts that are not empty, in UTF-8, for each key. Raises Unusable."""
    record = _parse(line)
    if not isinstance(record, dict):
        raise Unusable("not a JSON object")
    return [[line] if text_keys.is_record(key) else _texts_of(record, key) for key in json_keys]


def _texts_of(record: dict[str, Any], key: str) -> list[bytes]:
    value = text_keys.value_of(record, key)
    if value is text_keys.MISSING:
        raise Unusable(missing_key(key, record))
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise Unusable(wrong_type(key, value))
    return [_utf8(text) for text in texts if text]


def _parse(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return _parse_leniently(line)


def _parse_leniently(line: bytes) -> Any:
    try:
        return json.loads(line.decode(), parse_int=_any_number)
    except UnicodeDecodeError:
        raise Unusable(invalid_utf8(line, "line")) from None
    except json.JSONDecodeError as error:
        raise Unusable(f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}") from None
    except RecursionError:
        raise Unusable("not usable JSON: nested too deeply") from None


def _any_number(digits: str) -> int:
    """Replace a number by 0. Numbers are no text, and Python refuses to read a number with many digits."""
    return 0


def invalid_utf8(content: bytes, what: str) -> str:
    """Why `content`, a "line" or "text", is no UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f"invalid UTF-8: {error.reason} at byte {error.start + 1} of the {what}"
    raise AssertionError("valid UTF-8")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Unusable(f"lone surrogate U+{ord(text[error.start]):04X} at character {error.start + 1} of the text") from None


def wrong_type(key: str, value: Any) -> str:
    """Why the value of a key is no text."""
    return f"{text_keys.name_of(key)!r} is {_json_type(value)}, expected a string or a list of strings"


def missing_key(key: str, record: Iterable[str]) -> str:
    """Say that a record has no such key, and which keys it has."""
    present_keys = ", ".join(repr(name)[:40] for name in list(record)[:NAMED_KEYS])
    return f"no key {text_keys.name_of(key)!r}" + (f", it has {present_keys}" if present_keys else "")


def _json_type(value: Any) -> str:
    if isinstance(value, list):
        return "a list with other items than strings"
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", dict: "an object"}
    return names[type(value)]
