"""litgpt: `Epoch 1 | iter 64 step 4 | loss train: 10.5, val: n/a | iter time: 111.35 ms (step) remaining time: 1:01:49`.

Older versions print `iter 1760 | step 220: loss 1.5947, iter time: 263.85 ms (optimizer.step)`. An iteration is a micro batch, so
its time is a step's only if both numbers are equal, and only the iteration that ends a step is an event.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import decimal
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

_STEP = regex(
    rb"(?:\bEp(?:och)? (?P<epoch>\d{1,9}) ?\| ?)?\biter (?P<iteration>\d{1,15}) (?:\| )?step (?P<step>\d{1,15})(?::| \|) "
    rb"loss(?: train)?(?: \(curr\))?:? (?P<loss>"
    + NUMBER
    + rb")(?:, val(?: \([\w ]{1,30}\))?:? (?P<validation>[\w./()-]{1,40}))?"
    rb"(?:,| \|) iter time: (?P<milliseconds>" + NUMBER + rb") ?ms(?P<ends>(?: \((?:optimizer\.|opt\.)?step\))?)"
    rb"(?: remaining time: (?P<remaining>(?:\d{1,6} days?, )?\d{1,3}:\d\d:\d\d))?"
)
_EVALUATION = regex(rb"\biter (?P<step>\d{1,15}): val loss (?P<loss>" + NUMBER + rb"), val time: ")


def step(line: Line) -> StepLine | None:
    match = last_match(_STEP, line.text)
    if match is None:
        return None
    number = int(match["step"])
    if not match["ends"]:
        return None
    record: Record = {"kind": "step", "step": number, "loss": decimal(match["loss"])}
    if match["epoch"] is not None:
        # The line counts epochs from 1, records from 0.
        record["epoch"] = max(0, int(match["epoch"]) - 1)
    milliseconds = decimal(match["milliseconds"])
    if milliseconds is not None and int(match["iteration"]) == number:
        record["step_seconds"] = milliseconds / 1000
    metrics: Record = {"iter": int(match["iteration"]), "iter_ms": milliseconds}
    validation = decimal(match["validation"]) if match["validation"] is not None else None
    record["metrics"] = metrics if validation is None else {**metrics, "val": validation}
    return StepLine([], match.start(), match.end(), record)


def evaluation(line: Line) -> Record | None:
    match = last_match(_EVALUATION, line.text)
    if match is None:
        return None
    return {"kind": "eval", "loss": decimal(match["loss"]), "split": "validation", "metrics": {"iter": int(match["step"])}}
