"""Find the documents in a chunk, and account for every line that has none.

A document is a string, or a list of strings whose items become sequences of their own. orjson reads a line at 560 MB/s; what it
refuses goes to Python's own parser, which also takes what `json.dumps` writes (NaN, Infinity). A lone surrogate is no Unicode
text and cannot be tokenized: the line is bad, never silently changed.
"""

import json
from typing import Any, NamedTuple

import numpy as np
import orjson

from lt_preprocess.chunks import Chunk, LinesChunk
from lt_preprocess.tokenizer import Lengths, Texts


class Column(NamedTuple):
    """What one key holds. `texts` leaves empty ones out; `texts_per_document` is int64 [documents]."""

    texts: Texts
    texts_per_document: Lengths


class BadLine(NamedTuple):
    """A line that holds no document for some key.

    `source` as messages name the input; `line` from 1, None where it is not known (a part of a remote file); `offset` in bytes of
    the decompressed content, the row for Parquet; `raw` the line without its line break.
    """

    source: str
    line: int | None
    offset: int
    reason: str
    raw: bytes

    def __str__(self) -> str:
        line = "" if self.line is None else f", line {self.line}"
        return f"{self.source}{line}, byte {self.offset}: {self.reason}"


class Batch(NamedTuple):
    """The documents of one chunk, in order: one column per key, all of the same number of documents."""

    columns: list[Column]
    bad_lines: list[BadLine]


class _Unusable(ValueError):
    """A line without a document; the message says why."""


def prepare() -> None:
    """Compile what `batch` needs, so that threads do not wait for each other. Wrap in AnnounceCompilation."""


def batch(chunk: Chunk, json_keys: tuple[str, ...]) -> Batch:
    """Parse a chunk. Blank lines are no documents and no errors. A line that is bad for one key is left out for all."""
    assert isinstance(chunk, LinesChunk)
    lines = chunk.read()
    texts: list[list[bytes]] = [[] for _ in json_keys]
    counts: list[list[int]] = [[] for _ in json_keys]
    bad_lines = []
    offset = lines.offset
    for number, line in enumerate(lines.data[lines.start : lines.end].tobytes().split(b"\n")):
        if line and not line.isspace():
            try:
                found = _texts(line, json_keys)
            except _Unusable as reason:
                first = lines.first_line()
                bad_lines.append(BadLine(chunk.source, None if first is None else first + number, offset, str(reason), line))
            else:
                for column, of_key in enumerate(found):
                    texts[column].extend(of_key)
                    counts[column].append(len(of_key))
        offset += len(line) + 1
    columns = [Column(Texts.of(of_key), np.array(count, np.int64)) for of_key, count in zip(texts, counts, strict=True)]
    return Batch(columns, bad_lines)


def _texts(line: bytes, json_keys: tuple[str, ...]) -> list[list[bytes]]:
    """The non-empty texts of each key."""
    record = _parse(line)
    if not isinstance(record, dict):
        raise _Unusable("not a JSON object")
    return [_texts_of(record, key) for key in json_keys]


def _texts_of(record: dict[str, Any], key: str) -> list[bytes]:
    if key not in record:
        raise _Unusable(f"no key {key!r}")
    value = record[key]
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise _Unusable(f"{key!r} is {_json_type(value)}, expected a string or a list of strings")
    return [_utf8(text) for text in texts if text]


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
