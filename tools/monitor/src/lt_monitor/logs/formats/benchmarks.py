"""MLPerf's `:::MLLOG` lines, and what wandb says about its run."""

import json
import re

from lt_monitor.events.records import Record
from lt_monitor.logs.formats import note
from lt_monitor.logs.lines import Line

_MLLOG = re.compile(rb":::MLLOG (?P<json>\{.{1,20000}\})\s*$")
_WANDB = re.compile(
    rb"wandb: .{0,80}?(?:Syncing run (?P<name>\S{1,200})|View run (?P<viewed>\S{1,200}) at:? (?P<url>\S{1,500})"
    rb"|Run (?P<summary>summary):|(?P<sync>wandb sync) (?P<directory>\S{1,500}))"
)


def mlperf(line: Line) -> Record | None:
    """Each entry is a note; `run_stop` also ends the run."""
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


def wandb(line: Line) -> Record | None:
    match = _WANDB.search(line.text)
    if match is None:
        return None
    fields = {name: match[name].decode(errors="replace") for name in ("name", "url", "directory") if match[name]}
    if match["viewed"]:
        fields["name"] = match["viewed"].decode(errors="replace")
    return note(line, "wandb", fields, match.start())
