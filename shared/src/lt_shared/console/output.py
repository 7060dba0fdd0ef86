"""What a command says: lines for people on stderr, with the tool's name; data on stdout.

How much it says is chosen by -q and -v, for the processes that it starts, too: the choice is a variable of the environment.
"""

import contextlib
import enum
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import click

VERBOSITY = "LT_VERBOSITY"
_tool_name = "lt"


class Verbosity(enum.Enum):
    """QUIET: what is wrong. VERBOSE: also what was decided, and what it took."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


def begin(tool: str) -> None:
    """From here on the lines are those of `tool`."""
    global _tool_name
    _tool_name = tool


def tool_name() -> str:
    return _tool_name


def choose_verbosity(verbosity: Verbosity) -> None:
    os.environ[VERBOSITY] = verbosity.value


def verbosity() -> Verbosity:
    found = os.environ.get(VERBOSITY)
    return next((each for each in Verbosity if each.value == found), Verbosity.NORMAL)


def note(text: str) -> None:
    """Tell the person at the terminal one line, unless with -q."""
    if verbosity() != Verbosity.QUIET:
        _say(text)


def detail(text: str) -> None:
    """Tell it with -v only."""
    if verbosity() == Verbosity.VERBOSE:
        _say(text)


def _say(text: str) -> None:
    """A standard error that cannot be written, or that a program has closed, does not stop the work."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"{_tool_name}: {printable(text)}", err=True)


def printable(text: str) -> str:
    """Messages repeat what was given, which may be a URL with a password. Compiling its patterns would slow every --help."""
    from lt_shared import credentials

    return visible(credentials.without_tokens(text))


def visible(text: str) -> str:
    """The text with what a terminal would act on written out: escape sequences, other controls, changes of direction."""
    return "".join(character if character in "\n\t" or character.isprintable() else _escaped(character) for character in text)


def _escaped(character: str) -> str:
    # Bytes of a file name that are no UTF-8 are printed as they are.
    return character if "\udc80" <= character <= "\udcff" else character.encode("unicode_escape").decode()


def warn(text: str) -> None:
    _say(f"warning: {text}")


def print_json(record: Mapping[str, Any]) -> None:
    """Write one line of data to stdout at once, so that a reader at the other end of a pipe sees it."""
    sys.stdout.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
    sys.stdout.flush()
