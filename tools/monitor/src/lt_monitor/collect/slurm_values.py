"""Values in Slurm's JSON and texts: numbers, objects, times, allocated GPUs."""

import datetime
import re
from typing import Any


def whole_number(value: object) -> int | None:
    """Return a whole number from a number, a text, or an object with `set`, `infinite` and `number`."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    if isinstance(value, str) and re.fullmatch(r"\d{1,15}(?:-\d{1,15})?", value):
        value = int(value.split("-")[0])
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def plain_text(value: Any) -> str:
    return value if isinstance(value, str) and "\0" not in value else ""


def mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def moment(value: object) -> str | None:
    """Return ISO 8601 with a zone, from seconds since 1970 or from Slurm's local time; None if the time is not set."""
    seconds, text = whole_number(value), plain_text(value)
    try:
        if seconds:
            return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat()
        return datetime.datetime.fromisoformat(text).astimezone().isoformat() if text[:2] == "20" else None
    except (ValueError, OverflowError, OSError):
        return None


def gpu_count(tres: str) -> int | None:
    """Count the GPUs in `cpu=96,gres/gpu=8,gres/gpu:h100=8`."""
    match = re.search(r"(?:^|,)gres/gpu=(\d{1,7})", tres) or re.search(r"(?:^|,)gres/gpu:[^=,]{1,60}=(\d{1,7})", tres)
    return int(match[1]) if match else None
