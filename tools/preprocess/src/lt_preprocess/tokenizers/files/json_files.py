"""JSON files of tokenizers: read and checked for the little that all readers rely on."""

import contextlib
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lt_shared import memory
from lt_shared.console import BadData
from lt_shared.tokenizers import configuration as beside

_LARGE_BYTES = 1 << 18
_kept_files: dict[tuple[Path, int, int], dict[str, Any]] | None = None


def keep_files() -> None:
    """Keep the content of JSON files while a tokenizer is read: several modules need the same 30 MB."""
    global _kept_files
    _kept_files = {}


def release_files() -> None:
    """Forget the content of JSON files."""
    global _kept_files
    _kept_files = None


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file of a tokenizer. The result must not be changed.

    Raises BadData if the file is not a JSON object, or one that the libraries could read in another way.
    """
    status = path.stat()
    key = (path, status.st_size, status.st_mtime_ns)
    content = _kept_files.get(key) if _kept_files is not None else None
    if content is None:
        content = _read_quickly(path) or beside.read_object(path)
        if _kept_files is not None:
            _kept_files[key] = content
    return content


def _read_quickly(path: Path) -> dict[str, Any] | None:
    """Read a large JSON object in two thirds of the strict reader's time; None for a file that the strict reader must judge."""
    import orjson

    raw = path.read_bytes()
    if len(raw) < _LARGE_BYTES:
        return None
    with memory.garbage_collection_paused(), contextlib.suppress(orjson.JSONDecodeError):
        content = orjson.loads(raw)
        # A name that occurs twice in an object is lost, and with it strings.
        unescaped = raw.replace(rb"\\", b"") if rb"\\" in raw else raw
        if isinstance(content, dict) and 2 * _count_strings(content) == unescaped.count(b'"') - unescaped.count(rb"\""):
            return content
    return None


def _count_strings(value: Any) -> int:
    """Count the strings in a JSON value, the names in its objects included."""
    if isinstance(value, dict):
        if set(map(type, value.values())) == {int}:
            return len(value)
        strings = sum(type(part) is str for part in value.values())
        return len(value) + strings + sum(_count_strings(part) for part in value.values() if type(part) in (dict, list))
    if not isinstance(value, list):
        return int(isinstance(value, str))
    kinds = set(map(type, value))
    if kinds == {str}:
        return len(value)
    if kinds == {list} and set(map(type, itertools.chain.from_iterable(value))) == {str}:
        return sum(map(len, value))
    return sum(map(_count_strings, value))


def check_ids(path: Path, ids: dict[Any, Any]) -> dict[str, int]:
    """Tokens and their ids, when they are that, and there are any."""
    if not ids:
        raise BadData(f"{path}: its vocabulary is empty")
    if not all(type(number) is int and 0 <= number < 2**31 for number in ids.values()):
        token, number = next(item for item in ids.items() if type(item[1]) is not int or not 0 <= item[1] < 2**31)
        raise BadData(f"{path}: token {token!r} has id {number!r}")
    if len(set(ids.values())) < len(ids):
        raise BadData(f"{path}: several tokens share an id")
    return ids


def configuration(companions: Iterable[Path]) -> dict[str, Any]:
    """The content of a `tokenizer_config.json` beside the tokenizer; empty when there is none."""
    for path in companions:
        if path.name == "tokenizer_config.json":
            return read_object(path)
    return {}


def eos_token(companions: Iterable[Path]) -> str | None:
    """The `eos_token` that the files beside the tokenizer name."""
    return beside.read(companions).eos_token
