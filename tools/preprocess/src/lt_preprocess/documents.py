"""Find the documents in JSON lines, and account for every line that has none.

A document is a string, or a list of strings whose items become sequences of their own. orjson reads a line at 560 MB/s; what it
refuses goes to Python's own parser, which also takes what `json.dumps` writes (NaN, Infinity). A lone surrogate is no Unicode
text and cannot be tokenized: the line is bad, never silently changed.
"""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import orjson

from lt_preprocess.inputs import Block


@dataclasses.dataclass
class Batch:
    """The documents of one block, in order.

    `texts` are UTF-8, one per sequence; `sequences` the number of texts of each document; `bad_lines` the lines that hold no
    document, as "source, line 7: reason".
    """

    texts: list[bytes] = dataclasses.field(default_factory=list)
    sequences: list[int] = dataclasses.field(default_factory=list)
    bad_lines: list[str] = dataclasses.field(default_factory=list)


class _Unusable(ValueError):
    """A line without a document; the message says why."""


def batch(block: Block, json_key: str) -> Batch:
    """Parse a block of JSON lines. Blank lines are no documents and no errors."""
    found = Batch()
    for number, line in enumerate(block.lines.split(b"\n"), block.first_line):
        if not line or line.isspace():
            continue
        try:
            texts = list(_texts(line, json_key))
        except _Unusable as reason:
            found.bad_lines.append(f"{block.source}, line {number}: {reason}")
        else:
            found.texts.extend(texts)
            found.sequences.append(len(texts))
    return found


def _texts(line: bytes, json_key: str) -> Iterator[bytes]:
    """The non-empty texts of one document."""
    record = _parse(line)
    if not isinstance(record, dict):
        raise _Unusable("not a JSON object")
    if json_key not in record:
        raise _Unusable(f"no key {json_key!r}")
    value = record[json_key]
    for text in value if isinstance(value, list) else [value]:
        if not isinstance(text, str):
            raise _Unusable(f"{json_key!r} is {_json_type(value)}, expected a string or a list of strings")
        if text:
            yield _utf8(text)


def _parse(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return _parse_leniently(line)


def _parse_leniently(line: bytes) -> Any:
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise _Unusable(f"invalid UTF-8: {error.reason} at byte {error.start + 1} of the line") from None
    except json.JSONDecodeError as error:
        raise _Unusable(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise _Unusable("not usable JSON: nested too deeply") from None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _Unusable(f"lone surrogate U+{ord(text[error.start]):04X} at character {error.start + 1} of the text") from None


def _json_type(value: Any) -> str:
    if isinstance(value, list):
        return "a list with other items than strings"
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", dict: "an object"}
    return names[type(value)]
