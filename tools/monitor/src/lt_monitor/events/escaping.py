"""Text from logs made safe to show: terminals obey escape sequences, and a name may hide what it is by writing backwards."""

import json

from lt_monitor.events.records import MESSAGE_CHARACTERS


def printable(text: object, limit: int = MESSAGE_CHARACTERS) -> str:
    """One line without control, formatting or invalid characters, which are shown as escapes such as \\x1b.

    What is longer than `limit` characters ends in an ellipsis.
    """
    said = str(text)
    shown = said if said.isprintable() else "".join(one if one.isprintable() else _escape(one) for one in said)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def json_for_terminals(line: bytes) -> bytes:
    """A line of JSON that says the same without control and formatting characters, which JSON need not escape above ASCII."""
    if line.isascii() and b"\x7f" not in line:
        return line
    text = line.decode(errors="replace")
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1].replace("\x7f", "\\u007f") for one in text).encode()


def counted(count: int, noun: str) -> str:
    """`1 restart`, `2,000 restarts`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
