"""levanter: the progress bar that it logs, its JSON tracker, evaluations and checkpoints.

The bar rounds large step numbers to three digits (`1.20kit/10.0kit` is step 1200 of 10,000). If several steps are printed alike,
the last one counts. The bar's loss has three digits. The JSON tracker prints both in full.
"""

import json

from lt_monitor.events.records import MAXIMUM_COUNT, Record
from lt_monitor.logs.fields import Field, Value, decimal
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

_BAR = regex(
    rb"Progress on:train (?P<step>\d{1,6}(?:\.\d{1,3})?)(?P<step_scale>[kM]?)it/"
    rb"(?P<total>\d{1,6}(?:\.\d{1,3})?)(?P<total_scale>[kM]?)(?:it)?"
    rb" rate:(?P<rate>" + NUMBER + rb")(?P<unit>s/it|it/s)(?P<times>[^\r\n]{0,80}? postfix:)?(?:loss=(?P<loss>" + NUMBER + rb"))?"
)
_TRACKED = regex(rb'\{"tracker": "[^"]{1,60}", "event": "log", "step": \d{1,15}, ')
_VALIDATION = regex(rb"(?:(?P<name>[\w/.-]{1,120}) )?(?:validation|\beval) loss: (?P<loss>" + NUMBER + rb")\s{0,20}$")
_SAVING = regex(rb"Saving (?:temporary )?checkpoint at step (?P<step>\d{1,15})(?: to (?P<path>\S{1,4096}))?")

_SCALES = {b"": 1.0, b"k": 1e3, b"M": 1e6}
_TRACKED_FIELDS = {
    "train/loss": Field("loss"),
    "throughput/duration": Field("step_seconds"),
    "throughput/tokens_per_second": Field("tokens_per_second"),
    "throughput/examples_per_second": Field("samples_per_second"),
    "throughput/mfu": Field("mfu", divisor=100.0),
    "optim/learning_rate": Field("learning_rate"),
    "grad/norm/total": Field("grad_norm"),
}


def step(line: Line) -> StepLine | None:
    match = last_match(_BAR, line.text)
    if match is None:
        return None
    values: list[Value] = [
        (Field(field, is_count=True, factor=_SCALES[match[f"{name}_scale"]]), *match.span(name))
        for name, field in (("step", "step"), ("total", "total_steps"))
    ]
    values.append((Field("step_seconds", is_rate=match["unit"] == b"it/s"), *match.span("rate")))
    if match["times"] is not None:
        values.append((None, *match.span("times")))
    if match["loss"] is not None:
        values.append((Field("loss"), *match.span("loss")))
    return StepLine([*values, *line.labels], *match.span())


def tracked(line: Line) -> Record | None:
    """Parse a line of the JSON tracker, which has some of a step's values."""
    match = last_match(_TRACKED, line.text)
    if match is None:
        return None
    try:
        entry = json.loads(line.text[match.start() :])
    except (ValueError, RecursionError):
        return None
    metrics = entry.get("metrics")
    if not isinstance(metrics, dict) or entry["step"] > MAXIMUM_COUNT:
        return None
    values = {
        field.name: value / field.divisor
        for name, field in _TRACKED_FIELDS.items()
        if isinstance(value := metrics.get(name), (int, float)) and not isinstance(value, bool)
    }
    return {"kind": "step", "step": entry["step"], **values} if values else None


def evaluation(line: Line) -> Record | None:
    match = _VALIDATION.search(line.text)
    if match is None or b"levanter" not in line.text:
        return None
    name = (match["name"] or b"").decode()
    is_named = bool(name) and name not in ("INFO", "::")
    return {"kind": "eval", "loss": decimal(match["loss"]), "split": name if is_named else "validation"}


def checkpoint(line: Line) -> Record | None:
    """Parse the begin of a checkpoint, as levanter or Orbax prints it."""
    match = _SAVING.search(line.text)
    if match is None:
        return None
    record: Record = {"kind": "checkpoint", "step": int(match["step"]), "begun": True}
    return {**record, "path": match["path"].decode(errors="replace")} if match["path"] else record
