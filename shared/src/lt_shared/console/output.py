"""Print lines for people on stderr, with the tool's name in front, and data on stdout.

-q and -v set the verbosity in an environment variable, so child processes inherit it.
"""

import contextlib
import enum
import fcntl
import functools
import json
import os
import re
import stat
import sys
from collections.abc import Mapping
from typing import Any

import click

VERBOSITY = "LT_VERBOSITY"
# With U+2028 and U+2029, at which str.splitlines ends a line, and invisible characters such as U+FEFF, by which two names look
# alike. Joiners stay: Persian, Hindi and emoji need them.
_TERMINAL_CONTROLS = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]"
)
_tool_name = "lt"


class Verbosity(enum.Enum):
    """QUIET prints warnings and errors only. VERBOSE adds decisions and timings."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


def counted(count: int, noun: str) -> str:
    """Format a count with its noun: `1 document`, `2,000 documents`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def begin(tool: str) -> None:
    """Put the name of `tool` in front of every later line."""
    global _tool_name
    _tool_name = tool


def tool_name() -> str:
    return _tool_name


def choose_verbosity(verbosity: Verbosity) -> None:
    os.environ[VERBOSITY] = verbosity.value


def verbosity() -> Verbosity:
    value = os.environ.get(VERBOSITY)
    return next((level for level in Verbosity if level.value == value), Verbosity.NORMAL)


def note(text: str) -> None:
    """Print one line on stderr, except with -q."""
    if verbosity() != Verbosity.QUIET:
        _say(text)


def detail(text: str) -> None:
    """Print one line on stderr with -v only."""
    if verbosity() == Verbosity.VERBOSE:
        _say(text)


def _say(text: str) -> None:
    """Print one line on stderr; ignore a stderr that is closed or cannot be written."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"{_tool_name}: {printable(text)}", err=True)


def printable(text: str) -> str:
    """Remove passwords and tokens from `text`, because messages repeat arguments such as URLs; escape control characters."""
    # Compiling its patterns would slow every --help.
    from lt_shared import credentials

    return visible(credentials.without_tokens(text))


def visible(text: str) -> str:
    """Escape the characters that a terminal acts on: escape sequences, other controls, changes of direction."""
    if text.isprintable():
        # Most texts are; the question for each character took a tenth of a rank's time in a run of two steps.
        return text
    return "".join(character if character in "\n\t" or character.isprintable() else _escaped(character) for character in text)


def _escaped(character: str) -> str:
    # Surrogates stand for bytes of a file name that are not UTF-8; they are printed unchanged.
    return character if "\udc80" <= character <= "\udcff" else character.encode("unicode_escape").decode()


def warn(text: str) -> None:
    _say(f"warning: {text}")


def visible_json(encoded: str) -> str:
    """Escape characters that a terminal obeys or hides in JSON or TOML. JSON escapes C0 itself."""
    if encoded.isascii() and "\x7f" not in encoded:
        return encoded
    return _TERMINAL_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", encoded)


def print_json(record: Mapping[str, Any]) -> None:
    """Write one line of data to stdout at once, so that a reader at the other end of a pipe sees it."""
    _end_cut_line()
    sys.stdout.write(visible_json(json.dumps(record, ensure_ascii=False, separators=(",", ":"))) + "\n")
    sys.stdout.flush()


def print_text(text: str) -> None:
    """Write a line or a table for people to stdout, with control characters escaped."""
    _end_cut_line()
    click.echo(visible(text))


@functools.cache
def _end_cut_line() -> None:
    """Before the first line of this process: end the last line of a file that stdout appends to, if it was cut off.

    An earlier process may have met a full disk in the middle of a line, and this process repeats that line as a whole.
    """
    with contextlib.suppress(OSError, ValueError):
        descriptor = sys.stdout.fileno()
        is_appended = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
        if not is_appended or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return
        with open(f"/proc/self/fd/{descriptor}", "rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                sys.stdout.write("\n")
