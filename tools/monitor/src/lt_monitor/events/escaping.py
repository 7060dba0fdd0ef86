"""Make text from logs safe to print: terminals obey escape sequences, and right-to-left marks can disguise a name."""

import json

from lt_monitor.events.records import MESSAGE_CHARACTERS


def printable(text: object, limit: int = MESSAGE_CHARACTERS) -> str:
    """Return one line, with escapes such as \\x1b for control, formatting and invalid characters.

    A text of more than `limit` characters is cut and ends in an ellipsis.
    """
    raw = str(text)
    shown = raw if raw.isprintable() else "".join(one if one.isprintable() else _escape(one) for one in raw)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def json_for_terminals(line: bytes) -> bytes:
    """Escape the control and formatting characters above ASCII in a line of JSON, which JSON itself allows unescaped."""
    if line.isascii() and b"\x7f" not in line:
        return line
    text = line.decode(errors="replace")
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1].replace("\x7f", "\\u007f") for one in text).encode()


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
