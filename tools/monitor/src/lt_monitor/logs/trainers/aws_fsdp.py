"""The FSDP examples of awsome-distributed-training: `Batch 90 Loss: 7.24291, Speed: 9.41 samples/sec, lr: 0.000010`.

The step is the batch number, so the first step is 0 and numbers restart in every epoch. A checkpoint's name counts the finished
steps, one more than its last batch. Its record has the last batch as the step, to agree with the step lines. The speed sums over
all ranks.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, Value
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

_STEP = regex(
    rb"\bBatch (?P<step>\d{1,15}) Loss: (?P<loss>" + NUMBER + rb"), Speed: (?P<speed>" + NUMBER + rb") samples/sec"
    rb"(?:, Model TFLOPS/GPU: (?P<tflops>" + NUMBER + rb"))?"
    rb"(?:, lr: (?P<lr>" + NUMBER + rb"))?"
    rb"(?:, gradnorm: (?P<grad_norm>" + NUMBER + rb"))?"
)
_EVALUATION = regex(rb"\bBatch (?P<step>\d{1,15}) Validation loss: (?P<loss>" + NUMBER + rb")")
_CHECKPOINT = regex(
    rb"(?P<what>Writing checkpoint to|Loading checkpoint from|Checkpoint loaded from) "
    rb"(?P<path>\S{1,4000}-(?P<done>\d{1,15})steps)(?:\.| \.\.\.)?\s*$"
)
_COMPLETED = regex(rb" Completed checkpoint\.\s*$")
_KINDS = {b"Writing checkpoint to": "checkpoint", b"Loading checkpoint from": "load", b"Checkpoint loaded from": "load"}

_FIELDS = {
    "step": Field("step", is_count=True),
    "loss": Field("loss"),
    "speed": Field("samples_per_second"),
    "tflops": Field("tflops_per_gpu"),
    "lr": Field("learning_rate"),
    "grad_norm": Field("grad_norm"),
}


def step(line: Line) -> StepLine | Record | None:
    match = last_match(_STEP, line.text)
    if match is None:
        return None
    values: list[Value] = [(field, *match.span(name)) for name, field in _FIELDS.items() if match[name] is not None]
    return StepLine([*values, *line.labels], *match.span())


def evaluation(line: Line) -> Record | None:
    match = last_match(_EVALUATION, line.text)
    if match is None:
        return None
    return {"kind": "eval", "step": int(match["step"]), "loss": _FIELDS["loss"].read(match["loss"]), "split": "validation"}


def checkpoint(line: Line) -> Record | None:
    """Parse a checkpoint that is begun, complete or loaded. The line of a complete one has no step; `LogParser` adds the last."""
    if _COMPLETED.search(line.text) is not None:
        return {"kind": "checkpoint"}
    match = _CHECKPOINT.search(line.text)
    if match is None or int(match["done"]) == 0:
        return None
    record = {"kind": _KINDS[match["what"]], "step": int(match["done"]) - 1, "path": match["path"].decode(errors="replace")}
    return record if match["what"].startswith(b"Checkpoint loaded") else {**record, "begun": True}
