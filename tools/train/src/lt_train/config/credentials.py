"""Passwords and tokens on command lines: refused where they would reach a job file, a log or the list of processes.

Credentials come from the environment. What is one, `lt_shared.credentials` says.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from lt_shared.console import UsageError
from lt_shared.credentials import NOT_SHOWN as NOT_SHOWN
from lt_shared.credentials import REFUSED, covered
from lt_shared.credentials import holds as holds
from lt_shared.credentials import is_secret as is_secret


def check(value: str, where: str, patterns: Iterable[re.Pattern[str]] = REFUSED) -> None:
    """Raises UsageError for a text with a password or a token, which it does not repeat."""
    if any(pattern.search(value) for pattern in patterns):
        raise UsageError(
            f"{where}: {covered(value)} holds a password or a token: others read job files, logs and process lists",
            "leave it out: credentials come from the environment (AWS_PROFILE, HF_TOKEN, ...) or from the program's own login",
        )


def check_options(options: Mapping[str, Any]) -> None:
    """The same for the values of a command line, by the names of their parameters."""
    for name, value in options.items():
        where = "DATA" if name == "data" else f"--{name.replace('_', '-')}"
        for text in value if isinstance(value, list | tuple) else (value,):
            if isinstance(text, str):
                check(text, where)
