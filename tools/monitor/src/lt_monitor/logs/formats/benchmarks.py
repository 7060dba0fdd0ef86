"""MLPerf's `:::MLLOG` lines, and what wandb says about its run."""

import datetime
import json
import math

from lt_monitor.events.records import MAXIMUM_COUNT, Record
from lt_monitor.logs.line_parsers import StepLine, note, regex
from lt_monitor.logs.lines import Line

_MLLOG = regex(rb":::MLLOG (?P<json>\{.{1,20000}\})\s*$")
_LOSSES = ("train_loss", "reduced_train_loss", "training_loss", "loss")
_STEP_KEYS = ("step_num", "step", "global_step", "iteration")
_SAMPLE_KEYS = ("samples_count", "samples_num", "consumed_samples")
_LAST_TIME_MS = 4e12
_WANDB = regex(
    rb"wandb: .{0,80}?(?:Syncing run (?P<name>\S{1,200})|View run (?P<viewed>\S{1,200}) at:? (?P<url>\S{1,500})"
    rb"|Run (?P<summary>summary):|(?P<sync>wandb sync) (?P<directory>\S{1,500}))"
)


def mlperf(line: Line) -> StepLine | Record | None:
    """A training loss is a step, `run_stop` ends the run, any other entry is a note.

    A step's entry may count samples only; `step_numbers` divides them by the batch size of an earlier entry.
    """
    match = _MLLOG.search(line.text)
    if match is None:
        return None
    try:
        entry = json.loads(match["json"])
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
        return None
    metadata = entry["metadata"] if isinstance(entry.get("metadata"), dict) else {}
    if entry["key"] == "run_stop":
        return {"kind": "end", "reason": "completed" if metadata.get("status") == "success" else "failed"}
    if (step := _mlperf_step(entry, metadata)) is not None:
        return StepLine([], *match.span(), step)
    samples = metadata.get("samples_count")
    fields = {
        "key": entry["key"],
        "event_type": entry.get("event_type"),
        "value": entry.get("value"),
        "time_ms": entry.get("time_ms"),
    }
    if samples is not None:
        fields["samples"] = samples
    return {"kind": "note", "note": "mlperf", "message": entry["key"], "fields": fields}


def _mlperf_step(entry: Record, metadata: Record) -> Record | None:
    """A step with its loss, alone or among `tracked_stats`."""
    value = entry.get("value")
    losses = value if isinstance(value, dict) else {entry["key"]: value}
    loss = next((losses[key] for key in _LOSSES if key in losses), None)
    if not isinstance(loss, (int, float)) or isinstance(loss, bool):
        return None
    record: Record = {"kind": "step", "loss": loss if math.isfinite(loss) else None}
    number = next((metadata[key] for key in _STEP_KEYS if _is_count(metadata.get(key))), None)
    samples = next((metadata[key] for key in _SAMPLE_KEYS if _is_count(metadata.get(key))), None)
    if number is not None:
        record["step"] = int(number)
    if samples is not None:
        record["consumed_samples"] = int(samples)
    time = entry.get("time_ms")
    if isinstance(time, (int, float)) and 0 < time < _LAST_TIME_MS:
        instant = datetime.datetime.fromtimestamp(time / 1000, datetime.UTC)
        record["time"] = instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return record


def _is_count(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAXIMUM_COUNT


def wandb(line: Line) -> Record | None:
    match = _WANDB.search(line.text)
    if match is None:
        return None
    fields = {name: match[name].decode(errors="replace") for name in ("name", "url", "directory") if match[name]}
    if match["viewed"]:
        fields["name"] = match["viewed"].decode(errors="replace")
    return note(line, "wandb", fields, match.start())
