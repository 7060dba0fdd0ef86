"""NeMo Automodel: steps, validation and checkpoints, as its recipes print them since 2025 and as its guides tabulate them.

A line is `step N` and then `key value` between bars. Recipes and releases add, drop and respell keys, so values are read by key.
`tps` counts all ranks' tokens and `tps/gpu` one rank's tokens. Releases up to August 2025, which write `mem:`, count
only the printing rank's tokens without saying so; their `tps` stays a metric under its own name. A checkpoint's only line is
printed before the checkpoint is written, so it means that saving has begun.
"""

import re

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, Value
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import GIB, NUMBER

_STEP = regex(
    rb"(?P<validation>\[val\] (?:name \"(?P<name>[^\"|]{1,80})\" \| |(?P<old_name>[^\"|]{1,80}) \| )?)?"
    rb"\bstep {1,8}(?P<step>\d{1,15}) {0,8}\| (?=(?:epoch|loss|val_loss) )"
)
_PAIR = regex(
    rb"(?P<key>[A-Za-z_][\w/]{0,40}:?) {1,8}(?P<value>" + NUMBER + rb")"
    rb"(?P<unit> GiB|s|/gpu|\((?P<per_gpu>" + NUMBER + rb")/gpu\))?(?= {0,8}(?:\||\(n=|<--|$))"
)
_SAVING = regex(rb"Saving checkpoint to (?P<path>\S{1,4000}epoch_\d{1,9}_step_(?P<step>\d{1,15}))\s*$")
_LOADING = regex(rb"Loading checkpoint from (?P<path>\S{1,4000}epoch_\d{1,9}_step_(?P<step>\d{1,15}))\s*$")

_STEP_NUMBER = Field("step", is_count=True)
_PER_GPU = Field("tokens_per_second_per_gpu")
_MEMORY = Field("memory_bytes", is_count=True, factor=float(GIB))
_FIELDS = {
    b"epoch": Field("epoch", is_count=True),
    b"loss": Field("loss"),
    b"grad_norm": Field("grad_norm"),
    b"lr": Field("learning_rate"),
    b"mem": _MEMORY,
    b"mem:": _MEMORY,
    b"tps": Field("tokens_per_second"),
    b"tps/gpu": _PER_GPU,
    b"time": Field("step_seconds"),
}


def step(line: Line) -> StepLine | Record | None:
    """Parse a training step or a validation; a line without loss, learning rate or norm is neither."""
    head = last_match(_STEP, line.text)
    if head is None:
        return None
    pairs = {pair["key"]: pair for pair in _PAIR.finditer(line.text, head.end())}
    validation_loss = pairs.get(b"val_loss", pairs.get(b"loss") if head["validation"] else None)
    if validation_loss is not None:
        return _evaluation(head, validation_loss)
    if not pairs.keys() & {b"grad_norm", b"lr", b"mem", b"mem:"}:
        return None
    values: list[Value] = [(_STEP_NUMBER, *head.span("step"))]
    for key, pair in pairs.items():
        values.append((_field(key, pair, b"mem:" in pairs), *pair.span("value")))
        if pair["per_gpu"] is not None:
            values.append((_PER_GPU, *pair.span("per_gpu")))
    return StepLine([*values, *line.labels], head.start())


def _field(key: bytes, pair: re.Match[bytes], is_first_release: bool) -> Field:
    if key == b"tps" and pair["unit"] == b"/gpu":
        return _PER_GPU
    if key not in _FIELDS or (key == b"tps" and is_first_release):
        return Field(key.decode(), is_metric=True)
    return _FIELDS[key]


def _evaluation(head: re.Match[bytes], loss: re.Match[bytes]) -> Record:
    record = {"kind": "eval", "step": int(head["step"]), "loss": _FIELDS[b"loss"].read(loss["value"]), "split": "validation"}
    name = head["name"] or head["old_name"]
    return record if name in (None, b"default") else {**record, "dataset": name.decode(errors="replace")}


def checkpoint(line: Line) -> Record | None:
    """Parse the begin of saving or loading; the step is in the path."""
    for pattern, kind in ((_SAVING, "checkpoint"), (_LOADING, "load")):
        match = pattern.search(line.text)
        if match is not None:
            return {"kind": kind, "begun": True, "step": int(match["step"]), "path": match["path"].decode(errors="replace")}
    return None
