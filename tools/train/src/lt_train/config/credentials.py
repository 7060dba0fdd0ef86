"""Refuse passwords and tokens on command lines, because job files, logs and process lists would show them.

Credentials come from the environment. `lt_shared.credentials` defines the patterns of a credential.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from lt_shared.console import UsageError
from lt_shared.credentials import NOT_SHOWN as NOT_SHOWN
from lt_shared.credentials import REFUSED, covered
from lt_shared.credentials import holds as holds
from lt_shared.credentials import is_secret as is_secret


def check(value: str, location: str, patterns: Iterable[re.Pattern[str]] = REFUSED) -> None:
    """Raise UsageError if `value` of the option `location` holds a password or a token. The message does not repeat it."""
    if any(pattern.search(value) for pattern in patterns):
        raise UsageError(
            f"{location}: {covered(value)} holds a password or a token: others read job files, logs and process lists",
            "leave it out: credentials come from the environment (AWS_PROFILE, HF_TOKEN, ...) or from the program's own login",
        )


def check_options(options: Mapping[str, Any]) -> None:
    """Check every value of a command line, by parameter name. Raises UsageError as `check`."""
    for name, value in options.items():
        location = "DATA" if name == "data" else f"--{name.replace('_', '-')}"
        for text in value if isinstance(value, list | tuple) else (value,):
            if isinstance(text, str):
                check(text, location)
