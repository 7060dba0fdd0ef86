"""Read log lines that are already event records, as `scrape` prints them, and leave out manifest lines of the lt tools."""

import json
from typing import Any

import orjson

from lt_monitor.events import records
from lt_monitor.events.records import Record

# Kinds of manifest lines, and the fields that distinguish them from events of these kinds.
MANIFEST = {"dataset": "tokens", "checkpoint": "format", "end": "count"}


def read(text: bytes) -> Record | str | None:
    """Parse an event record; return the problem of an invalid one, and None for a manifest line.

    A manifest line is ignored, because the trainer's log line has the same event.
    """
    try:
        record = _json(text)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    if _is_manifest(record):
        return None
    problem = records.problem(record)
    return dict(record) if problem is None else problem


def _is_manifest(record: object) -> bool:
    if not isinstance(record, dict):
        return False
    field = MANIFEST.get(str(record.get("kind")))
    return field is not None and field in record


def _json(text: bytes) -> Any:
    """Parse JSON. Python's json module also reads NaN, Infinity and lone surrogates, which orjson refuses."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)
