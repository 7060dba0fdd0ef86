"""nanoGPT: `iter 10: loss 4.2, time 120.1ms, mfu 30.1%`, its validation, and its checkpoints.

llama2.c and its derivatives print `490 | loss 5.7543 | lr 4.900000e-05 | 8060.78ms | mfu 0.21%`. A negative mfu was not measured
yet and is left out. A checkpoint's line names a directory and no step: `LogParser` adds the last step. The line is printed before
the file is written, and no line follows.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, Value
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

_STEP = regex(
    rb"\biter (?P<step>\d{1,15}): loss (?P<loss>" + NUMBER + rb"), time (?P<milliseconds>" + NUMBER + rb")ms"
    rb"(?:, mfu (?P<mfu>" + NUMBER + rb")%)?"
)
_BARE_STEP = regex(
    rb"(?:^|\s)(?P<step>\d{1,15}) \| loss (?P<loss>" + NUMBER + rb") \| lr (?P<lr>" + NUMBER + rb")"
    rb" \| (?P<milliseconds>" + NUMBER + rb")ms(?: \| mfu (?P<mfu>" + NUMBER + rb")%)?"
)
_EVALUATION = regex(
    rb"\bstep (?P<step>\d{1,15}): train loss (?P<train>" + NUMBER + rb"), val loss (?P<validation>" + NUMBER + rb")"
)
_SAVING = regex(rb"\bsaving checkpoint to (?P<path>\S{1,4096})\s*$")

_FIELDS = {
    "step": Field("step", is_count=True),
    "loss": Field("loss"),
    "lr": Field("learning_rate"),
    "milliseconds": Field("step_seconds", divisor=1000.0),
    "mfu": Field("mfu", divisor=100.0),
}


def step(line: Line) -> StepLine | None:
    match = last_match(_STEP, line.text) or last_match(_BARE_STEP, line.text)
    if match is None:
        return None
    values: list[Value] = []
    for name, text in match.groupdict().items():
        if text is not None:
            is_unknown = name == "mfu" and text.startswith(b"-")
            values.append((None if is_unknown else _FIELDS[name], *match.span(name)))
    return StepLine([*values, *line.labels], *match.span())


def evaluation(line: Line) -> Record | None:
    """Parse the mean losses of an evaluation on both splits; `train_loss` comes from batches of the training data."""
    match = last_match(_EVALUATION, line.text)
    if match is None:
        return None
    train, validation = (Field("loss").read(match[name]) for name in ("train", "validation"))
    return {"kind": "eval", "step": int(match["step"]), "loss": validation, "split": "validation", "train_loss": train}


def checkpoint(line: Line) -> Record | None:
    match = _SAVING.search(line.text)
    return None if match is None else {"kind": "checkpoint", "begun": True, "path": match["path"].decode(errors="replace")}
