"""What a command says: lines for people on stderr, with the tool's name; data on stdout."""

import contextlib
import json
import sys
from collections.abc import Mapping
from typing import Any

import click

_tool_name = "lt"


def begin(tool: str) -> None:
    """From here on the lines are those of `tool`."""
    global _tool_name
    _tool_name = tool


def tool_name() -> str:
    return _tool_name


def note(text: str) -> None:
    """Tell the person at the terminal one line. A standard error that cannot be written does not stop the work."""
    with contextlib.suppress(OSError):
        click.echo(f"{_tool_name}: {printable(text)}", err=True)


def printable(text: str) -> str:
    """Messages repeat what was given, which may be a URL with a password. Compiling its patterns would slow every --help."""
    from lt_shared import credentials

    return credentials.without_tokens(text)


def warn(text: str) -> None:
    note(f"warning: {text}")


def print_json(record: Mapping[str, Any]) -> None:
    """Write one line of data to stdout at once, so that a reader at the other end of a pipe sees it."""
    sys.stdout.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
    sys.stdout.flush()
