"""Text from logs made safe to show: terminals obey escape sequences, and a name may hide what it is by writing backwards."""

import re

# Control characters (C0, DEL, C1), those that change the direction of writing, line separators, and lone surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_REPLACEMENT = "\ufffd"


def printable(text: object, limit: int | None = None) -> str:
    """`text` in one line without anything that a terminal would obey; each such character becomes a replacement character.

    A tab and a line end become a space. What is longer than `limit` characters ends in an ellipsis.
    """
    safe = _UNSAFE.sub(_REPLACEMENT, re.sub(r"[\t\r\n]", " ", str(text)))
    return safe if limit is None or len(safe) <= limit else safe[: limit - 1] + "…"
