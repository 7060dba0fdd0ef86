r"""The value under a key of a record, or under a path of keys through its objects.

A key that the record has counts first. Otherwise a dot goes one object deeper: `meta.text` is the key `text` of the object under
`meta`. In a path, `\.` is a dot in a key and `\\` a backslash.
"""

import functools
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final


class _Missing(Enum):
    MISSING = "missing"


MISSING: Final = _Missing.MISSING


@functools.cache
def path_of(key: str) -> tuple[str, ...]:
    """The keys of a path; one for a key without a dot."""
    parts = [""]
    for match in re.finditer(r"\\(.)|(\.)|([^.\\]+|\\)", key, re.DOTALL):
        if match[2]:
            parts.append("")
        else:
            parts[-1] += match[1] or match[3]
    return tuple(parts)


def value_of(record: Mapping[str, Any], key: str) -> Any:
    """The value under a key or a path, MISSING if there is none."""
    if key in record:
        return record[key]
    path = path_of(key)
    if len(path) == 1 and path[0] == key:
        return MISSING
    value: Any = record
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value
