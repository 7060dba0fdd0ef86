"""A run's options in a TOML file: they become defaults, so flags and environment variables come before them."""

import tomllib
from collections.abc import Set
from typing import Any

from lt_shared import storage
from lt_shared.console import BadConfig


def from_toml(path: str, known: Set[str], lists: Set[str]) -> dict[str, Any]:
    """The options in a TOML file, keys with dashes or underscores; those in `lists` have a list even of one value.

    Raises BadConfig for unknown keys.
    """
    try:
        content = tomllib.loads(storage.read_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: not TOML: {error}") from None
    options = {key.replace("-", "_"): value for key, value in content.items()}
    for name, value in options.items():
        if not all(isinstance(entry, str | int | float) for entry in (value if isinstance(value, list) else [value])):
            raise BadConfig(f"{path}: {name} is {value!r}, expected one value or a list of values")
        if name in lists and not isinstance(value, list):
            options[name] = [value]
    unknown = sorted(set(options) - known)
    if unknown:
        raise BadConfig(f"{path}: unknown options: {', '.join(unknown)}", "see lt-train --help for their names")
    return options
