"""Passwords and tokens in texts: refused where they would reach a job file or a log, and covered where a text is shown.

Credentials come from the environment. A password in a URL and the tokens of well-known services are recognized by their form,
other secrets by the name that they have. A secret of no known form under a harmless name is not noticed.
"""

import re
from collections.abc import Mapping
from typing import Any

from lt_shared.console import UsageError

NOT_SHOWN = "(not shown)"
WORD = "token|passwords?|passwd|passphrase|secrets?|credentials?|signature|(?:api|access|secret|private|wandb|auth|ssh)[_-]?key"
NAME = re.compile(rf"(.*[._-])?({WORD})", re.IGNORECASE)
# USER:PASSWORD@, also with a slash in the password; HOST:PORT/... and the digest of an image after its tag are none.
PASSWORD = re.compile(r"(?<=://)[^/@\s:#]*:(?!\d+[/#])\S*@(?!sha256:)")
# A user without a password is a token at the addresses of git's hosts; to a registry it is a name.
WEB_USER = re.compile(r"(?<=http://)[^/@\s]+@|(?<=https://)[^/@\s]+@")
TOKEN = re.compile(
    r"(?<![A-Za-z0-9])("
    r"hf_(?=[A-Za-z]*[0-9A-Z])[A-Za-z0-9]{10,}(?![A-Za-z0-9_])"
    r"|gh[opsru]_[A-Za-z0-9]{10,}|github_pat_\w{10,}|glpat-[\w-]{10,}|xox[abeprs]-[\w-]{10,}|(AKIA|ASIA)[A-Z0-9]{16})"
)
ASSIGNMENT = re.compile(rf"(?<![A-Za-z0-9])({WORD})=[^\s,;&]+", re.IGNORECASE)
REFUSED = (PASSWORD, TOKEN)


def check(value: str, where: str) -> None:
    """Raises UsageError for a text with a password or a token, which it does not repeat."""
    if any(pattern.search(value) for pattern in REFUSED):
        raise UsageError(
            f"{where}: {covered(value)} holds a password, which others could read in job files, logs and process lists",
            "leave it out: credentials come from the environment (AWS_PROFILE, HF_TOKEN, ...) or from the program's own login",
        )


def check_options(options: Mapping[str, Any]) -> None:
    """The same for the values of a command line, by the names of their parameters."""
    for name, value in options.items():
        where = "DATA" if name == "data" else f"--{name.replace('_', '-')}"
        for text in value if isinstance(value, list | tuple) else (value,):
            if isinstance(text, str):
                check(text, where)


def is_secret(name: str) -> bool:
    return NAME.fullmatch(name) is not None


def holds(value: Any) -> bool:
    """Whether showing `value`, a text or a list of them, would show a secret."""
    return bool(covered(value) != value)


def covered(value: Any) -> Any:
    """`value`, nested lists and tables included, without its secrets."""
    if isinstance(value, str):
        for pattern in (PASSWORD, WEB_USER):
            value = pattern.sub(f"{NOT_SHOWN}@", value)
        value = TOKEN.sub(NOT_SHOWN, value)
        return ASSIGNMENT.sub(rf"\1={NOT_SHOWN}", value)
    if isinstance(value, list):
        return [covered(entry) for entry in value]
    if isinstance(value, Mapping):
        # Kubernetes writes variables as tables of a name and a value.
        hides_all = is_secret(str(value.get("name", "")))
        return {
            key: NOT_SHOWN if is_secret(str(key)) or (hides_all and key != "name") else covered(entry)
            for key, entry in value.items()
        }
    return value
