"""mlx-lm: `Iter 10: Train loss 2.363, Learning Rate 1.000e-05, It/sec 1.022, Tokens/sec 88.083, Trained Tokens 862`.

A line is printed every few iterations, with the mean loss and speed since the last. Old versions print fewer numbers.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, Value, decimal
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

_STEP = regex(
    rb"\bIter (?P<step>\d{1,15}): Train loss (?P<loss>" + NUMBER + rb")(?:, Learning Rate (?P<lr>" + NUMBER + rb"))?"
    rb"(?:, It/sec (?P<rate>" + NUMBER + rb"))?(?:, Tokens/sec (?P<tokens>" + NUMBER + rb"))?"
    rb"(?:, Trained Tokens (?P<total>\d{1,15}(?:\.\d)?))?(?:, Peak mem (?P<memory>" + NUMBER + rb") GB)?"
)
_EVALUATION = regex(rb"\bIter (?P<step>\d{1,15}): Val loss (?P<loss>" + NUMBER + rb"), Val took ")
_SAVED = regex(rb"\bIter (?P<step>\d{1,15}): Saved (?:adapter|final) weights to (?P<path>\S{1,4096}?)\.?(?:\s|$)")
GB = 1_000_000_000
_FIELDS = {
    "step": Field("step", is_count=True),
    "loss": Field("loss"),
    "lr": Field("learning_rate"),
    "rate": Field("step_seconds", is_rate=True),
    "tokens": Field("tokens_per_second"),
    "total": Field("consumed_tokens", is_count=True),
    "memory": Field("memory_bytes", is_count=True, factor=GB),
}


def step(line: Line) -> StepLine | None:
    match = last_match(_STEP, line.text)
    if match is None:
        return None
    values: list[Value] = [(_FIELDS[name], *match.span(name)) for name, text in match.groupdict().items() if text is not None]
    return StepLine([*values, *line.labels], *match.span())


def evaluation(line: Line) -> Record | None:
    match = last_match(_EVALUATION, line.text)
    if match is None:
        return None
    return {"kind": "eval", "step": int(match["step"]), "loss": decimal(match["loss"]), "split": "validation"}


def checkpoint(line: Line) -> Record | None:
    match = _SAVED.search(line.text)
    if match is None:
        return None
    return {"kind": "checkpoint", "step": int(match["step"]), "path": match["path"].decode(errors="replace")}
