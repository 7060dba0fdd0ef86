"""JSON from outside, read so that no other parser can read it differently.

RFC 8259 leaves open what an object with one name twice means: Python keeps the last value, some parsers the first, others refuse.
A `config.json` or a safetensors header that one program checks and another one uses must not have two readings, so here a
repeated name is an error, as are NaN and Infinity, which are not JSON, numbers too large for a float, bytes that are not UTF-8
(Python also takes UTF-16), and halves of surrogate pairs, which the parsers of Rust refuse.
"""

import json
import math
from typing import Any


def loads(content: bytes | str, has_paths: bool = False) -> Any:
    """Parse JSON. Raises ValueError (as `json.loads` does) if `content` is malformed, ambiguous or nested too deeply.

    Half a surrogate pair is malformed, but where it `has_paths` stands for a byte that is not UTF-8, as in Python's own paths.
    """
    text = content.decode() if isinstance(content, bytes) else content
    try:
        value = json.loads(text, object_pairs_hook=object_of, parse_constant=_refused, parse_float=_finite)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode(errors="surrogateescape" if has_paths else "strict")
        return value
    except RecursionError:
        raise ValueError("nested too deeply") from None


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, for `json.loads(..., object_pairs_hook=object_of)`. Raises ValueError when a name is there twice."""
    names = dict(pairs)
    if len(names) < len(pairs):
        keys: set[str] = set()
        twice = next(name for name, _ in pairs if name in keys or keys.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"it has {twice!r:.60} twice in one object")
    return names


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number:.40} is too large for a number")
    return value


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
