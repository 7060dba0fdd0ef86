"""MaxText: steps, evaluations and checkpoints, and Orbax's lines about complete checkpoints.

A step line is `completed step: 5, seconds: 0.823, ...`. If the loss has several terms, `loss` is their sum, and the language
model's loss is `lm_loss` or `main_model_loss`. The times of the lines have no year and are left out.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, Value, decimal
from lt_monitor.logs.line_parsers import StepLine, last_match, note, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

_STEP = regex(rb"completed step: (?P<step>\d{1,15}), ")
_PAIR = regex(rb"(?P<key>[A-Za-z][A-Za-z0-9_/]{0,60}): (?P<value>" + NUMBER + rb")")
_EVALUATION = regex(rb"eval metrics after step: (?P<step>\d{1,15}), (?:eval_)?loss(?:=|: )(?P<loss>" + NUMBER + rb")")
_BEGUN = regex(rb"Started an asynchronous checkpoint save for step (?P<step>\d{1,15})")
_SAVED = regex(rb"(?:Saved|saved) a checkpoint at step (?P<step>\d{1,15})")
_FINALIZED = regex(rb"\[step=(?P<step>\d{1,15})\] CheckpointManager Save Finalize is done on all hosts")
_RESTORING = regex(rb"restoring from this run's directory step (?P<step>\d{1,15})")
_PARAMETERS = regex(rb"number parameters: (?P<billions>\d{1,6}\.\d{1,9}) billion")

_NUMBER = Field("step", is_count=True)
_FIELDS = {
    b"seconds": Field("step_seconds"),
    b"steps/s": Field("step_seconds", is_rate=True),
    b"TFLOP/s/device": Field("tflops_per_gpu"),
    b"TFLOP/s": Field("tflops_per_gpu"),
    b"Tokens/s/device": Field("tokens_per_second_per_gpu"),
    b"lr": Field("learning_rate"),
    b"grad_norm": Field("grad_norm"),
}
_LOSS = Field("loss")
_LOSSES = (b"lm_loss", b"main_model_loss", b"loss")


def step(line: Line) -> StepLine | None:
    head = last_match(_STEP, line.text)
    if head is None:
        return None
    pairs = {pair["key"]: pair.span("value") for pair in _PAIR.finditer(line.text, head.end())}
    loss = next((key for key in _LOSSES if key in pairs), None)
    values: list[Value] = [(_NUMBER, *head.span("step"))]
    for key, span in pairs.items():
        name = "total loss" if key == b"loss" else key.decode()
        values.append((_LOSS if key == loss else _FIELDS.get(key) or Field(name, is_metric=True), *span))
    return StepLine([*values, *line.labels], head.start())


def evaluation(line: Line) -> Record | None:
    match = _EVALUATION.search(line.text)
    if match is None:
        return None
    loss = decimal(match["loss"].replace(b",", b""))
    return {"kind": "eval", "step": int(match["step"]), "loss": loss, "split": "validation"}


def checkpoint(line: Line) -> Record | None:
    text = line.text
    if (match := _BEGUN.search(text)) is not None:
        return {"kind": "checkpoint", "step": int(match["step"]), "begun": True, "asynchronous": True}
    if (match := _FINALIZED.search(text)) is not None:
        return {"kind": "checkpoint", "step": int(match["step"]), "asynchronous": True}
    if (match := _SAVED.search(text)) is not None:
        return {"kind": "checkpoint", "step": int(match["step"])}
    if (match := _RESTORING.search(text)) is not None:
        return {"kind": "load", "step": int(match["step"]), "begun": True}
    return None


def parameters(line: Line) -> Record | None:
    match = _PARAMETERS.search(line.text)
    return (
        None if match is None else note(line, "parameters", {"parameters": round(float(match["billions"]) * 1e9)}, match.start())
    )
