"""Keys as readers take them: keys or paths of a record (`key_paths`), optional ones marked.

A key that ends with a null character is optional: such a record may lack it or hold null. The fields of templates become such
keys; nobody can type one. A key that begins with a null character is a whole record, as JSON; it names the columns that matter
where a reader has columns.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from lt_shared.data.document_origins import key_paths

_OPTIONAL = "\0"

MISSING = key_paths.MISSING
_RECORD = "\0"


def optional(name: str) -> str:
    return name + _OPTIONAL


def record_of(columns: Iterable[str]) -> str:
    """The key of a whole record, of which `columns` matter."""
    return _RECORD + _RECORD.join(columns)


def is_record(key: str) -> bool:
    return key.startswith(_RECORD)


def columns_of(key: str) -> list[str]:
    """The columns that matter in a record."""
    return key.split(_RECORD)[1:]


@functools.cache
def name_of(key: str) -> str:
    """The key without the mark of an optional one."""
    return key.removesuffix(_OPTIONAL)


def is_optional(key: str) -> bool:
    return key.endswith(_OPTIONAL)


@functools.cache
def is_path(key: str) -> bool:
    """Whether a key may lead through objects."""
    return is_record(key) or key_paths.path_of(name_of(key)) != (name_of(key),)


def names(json_keys: Iterable[str]) -> list[str]:
    """The keys without marks."""
    return list(map(name_of, json_keys))


def required(json_keys: Iterable[str]) -> list[str]:
    """The keys that a record must have."""
    return [key for key in json_keys if not is_optional(key)]


def value_of(record: Mapping[str, Any], key: str) -> Any:
    """The value under a key, MISSING if there is none. An optional key that is missing or null has the value []."""
    value = key_paths.value_of(record, name_of(key))
    return [] if value in (MISSING, None) and is_optional(key) else value
