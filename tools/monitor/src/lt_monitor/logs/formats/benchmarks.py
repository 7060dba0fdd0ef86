"""MLPerf's `:::MLLOG` lines, nanochat's steps, and what wandb says about its run."""

import json
import re

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, Value
from lt_monitor.logs.formats import StepLine, note
from lt_monitor.logs.lines import Line
from lt_shared.run_log import NUMBER

_MLLOG = re.compile(rb":::MLLOG (?P<json>\{.{1,20000}\})\s*$")
_NANOCHAT = re.compile(
    rb"step (?P<step>\d{1,15})/(?P<total>\d{1,15}) \((?P<share>[\d.]{1,12})%\) \| loss: (?P<loss>" + NUMBER + rb") \| "
    rb"(?P<pairs>[^\r\n]{1,500})"
)
_NANOCHAT_PAIR = re.compile(rb"(?P<key>dt|tok/sec|bf16_mfu|mfu|epoch): {0,4}(?P<value>" + NUMBER + rb")")
_WANDB = re.compile(
    rb"wandb: .{0,80}?(?:Syncing run (?P<name>\S{1,200})|View run (?P<viewed>\S{1,200}) at:? (?P<url>\S{1,500})"
    rb"|Run (?P<summary>summary):|(?P<sync>wandb sync) (?P<directory>\S{1,500}))"
)

_NANOCHAT_FIELDS = {
    b"dt": Field("step_seconds", divisor=1000.0),
    b"tok/sec": Field("tokens_per_second"),
    b"bf16_mfu": Field("mfu", divisor=100.0),
    b"mfu": Field("mfu", divisor=100.0),
    b"epoch": Field("epoch", is_count=True),
}


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


def nanochat(line: Line) -> StepLine | None:
    match = _NANOCHAT.search(line.text)
    if match is None:
        return None
    values: list[Value] = [
        (Field("step", is_count=True), *match.span("step")),
        (Field("total_steps", is_count=True), *match.span("total")),
        (None, *match.span("share")),
        (Field("loss"), *match.span("loss")),
        (None, *match.span("pairs")),
    ]
    for pair in _NANOCHAT_PAIR.finditer(line.text, *match.span("pairs")):
        values.append((_NANOCHAT_FIELDS[pair["key"]], *pair.span("value")))
    return StepLine([*values, *line.labels])


def wandb(line: Line) -> Record | None:
    match = _WANDB.search(line.text)
    if match is None:
        return None
    fields = {name: match[name].decode(errors="replace") for name in ("name", "url", "directory") if match[name]}
    if match["viewed"]:
        fields["name"] = match["viewed"].decode(errors="replace")
    return note(line, "wandb", fields, match.start())
