"""What happens in a training run, as JSON records: the output of `scrape` and the input of everything else.

A record holds the fields that its line had. A field whose value is not a finite number is null, because JSON has no NaN; a field
that the line lacks is absent. Fields that are not known here pass through, so a newer trainer may add some.
"""

import datetime
import math
from typing import Any

from lt_shared import run_log

VERSION = 1

Record = dict[str, Any]

KINDS: dict[type[run_log.Event], str] = {
    run_log.Step: "step",
    run_log.Evaluation: "eval",
    run_log.CheckpointSaved: "checkpoint",
    run_log.CheckpointLoaded: "load",
    run_log.DocumentsProcessed: "preprocess",
}

_REQUIRED = {
    "step": ("step",),
    "eval": ("step", "loss"),
    "checkpoint": ("step", "path"),
    "load": ("step", "path"),
    "preprocess": ("documents",),
    "start": ("arguments",),
}
_COUNTS = ("step", "total_steps", "consumed_samples", "global_batch_size", "skipped_steps", "nan_steps", "documents")
_NUMBERS = (
    "loss",
    "grad_norm",
    "learning_rate",
    "loss_scale",
    "step_seconds",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "memory_bytes",
    "reserved_memory_bytes",
    "documents_per_second",
    "megabytes_per_second",
)
_TEXTS = ("run", "path", "split", "time")


def from_log(event: run_log.Event) -> Record:
    """The record of a parsed log line, without its run and source."""
    record: Record = {"v": VERSION, "kind": KINDS[type(event)]}
    for field, value in vars(event).items():
        if isinstance(value, datetime.datetime):
            record[field] = value.isoformat()
        elif value is not None:
            record[field] = _finite(value)
    return record


def problem(record: object) -> str | None:
    """Why `record`, read from a file, is not an event of this version; None when it is one. Makes numbers finite in place."""
    if not isinstance(record, dict) or record.get("v") != VERSION:
        return f"not a record of version {VERSION}"
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in _REQUIRED:
        return f"kind {kind!r} is not an event"
    for field in _REQUIRED[kind]:
        if field not in record:
            return f"has no {field}"
    for field in _COUNTS:
        value = record.get(field)
        if field in record and (type(value) is not int or value < 0) and (value is not None or field in _REQUIRED[kind]):
            return f"{field} is {value!r}"
    for field in _NUMBERS:
        if field in record:
            if record[field] is not None and type(record[field]) not in (int, float):
                return f"{field} is {record[field]!r}"
            record[field] = _finite(record[field])
    for field in _TEXTS:
        if field in record and not isinstance(record[field], str):
            return f"{field} is {record[field]!r}"
    if kind == "start" and not isinstance(record["arguments"], dict):
        return "arguments is not an object"
    return None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
