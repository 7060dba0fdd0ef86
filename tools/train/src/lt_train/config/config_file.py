"""Read a run's options from a TOML file. They become click's defaults, so flags and environment variables override them.

click receives the values as text, like environment variables, and checks both in the same way.
"""

import tomllib
from collections.abc import Mapping, Set
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.files import storage


def from_toml(path: str, names: Mapping[str, str], lists: Set[str], ignored: Set[str] = frozenset()) -> dict[str, Any]:
    """Read the options in a TOML file. Keys may have dashes or underscores.

    `names` maps each key, with underscores, to its parameter. Parameters in `lists` become lists, even if the file has a single
    value. Keys in `ignored` are skipped. Raises BadConfig for unknown keys, for an option in two spellings, for tables, and for a
    list if the option takes a single value.
    """
    try:
        content = tomllib.loads(storage.read_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: not TOML: {error}") from None
    content = {key: value for key, value in content.items() if key.replace("-", "_") not in ignored}
    unknown = sorted(key for key in content if key.replace("-", "_") not in names)
    if unknown:
        from difflib import get_close_matches

        spelled_alike = {key: get_close_matches(key.replace("-", "_"), names, n=1) for key in unknown}
        nearest = [f"{key}: did you mean {alike[0].replace('_', '-')}?" for key, alike in spelled_alike.items() if alike]
        hint = "; ".join(nearest) or "see lt-train --help for their names"
        raise BadConfig(f"{path}: unknown options: {', '.join(unknown)}", hint)
    options: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for key, value in content.items():
        name = names[key.replace("-", "_")]
        if name in spelled:
            raise BadConfig(f"{path}: {spelled[name]} and {key} are the same option", "leave one of them out")
        spelled[name] = key
        values = value if isinstance(value, list) and name in lists else [value]
        if not all(isinstance(entry, str | int | float) for entry in values):
            expected = "a list of values" if name in lists else "one value"
            raise BadConfig(f"{path}: {key} is {value!r}, expected {expected}")
        texts = [str(entry) for entry in values]
        if any("\0" in text for text in texts):
            raise BadConfig(f"{path}: {key} has a zero byte in it")
        options[name] = texts if name in lists else texts[0]
    return options
