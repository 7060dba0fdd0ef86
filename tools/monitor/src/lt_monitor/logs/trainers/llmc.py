"""llm.c: `step    1/19560 | loss 11.009 (+nanz)| norm 15.2 (+nanz)| lr 8.57e-07 | 2500.12 ms | 40.1% bf16 MFU | 210000 tok/s`.

The C and CUDA programs and their PyTorch twins print alike. Early versions have no bars (`step 5/100: train loss 4.3 (12.1 ms)`),
so the values after the loss are read one by one. A negative MFU (the program does not know the GPU) and the z-scores in brackets
are left out. `val loss 3.3` has no step: `LogParser` adds the last step, and drops a validation before the first step.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, Value
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

_STEP = regex(
    rb"\bstep {1,8}(?P<step>\d{1,15})(?:/(?P<total>\d{1,15}))?(?: \| (?:train )?|: train )loss {1,8}(?P<loss>"
    + NUMBER
    + rb")(?=[ |])"
)
_ITEM = regex(
    rb"\((?:acc |z )?(?P<aside>[-+]?\d{1,9}\.\d{1,9})z?\)|norm {1,8}(?P<grad_norm>" + NUMBER + rb")|lr (?P<lr>" + NUMBER + rb")"
    rb"|(?P<milliseconds>"
    + NUMBER
    + rb") ms\b|(?P<mfu>"
    + NUMBER
    + rb")% (?:bf16|A100 fp16) MFU|(?P<tokens>"
    + NUMBER
    + rb") tok/s"
)
_ITEMS_BYTES = 300
_EVALUATION = regex(rb"^val loss (?P<loss>" + NUMBER + rb")\s*$")
_WRITING = regex(rb"\bWriting checkpoint at step (?P<step>\d{1,15})\s*$")

_LOSS = Field("loss")
_FIELDS = {
    "step": Field("step", is_count=True),
    "total": Field("total_steps", is_count=True),
    "loss": _LOSS,
    "aside": None,
    "grad_norm": Field("grad_norm"),
    "lr": Field("learning_rate"),
    "milliseconds": Field("step_seconds", divisor=1000.0),
    "mfu": Field("mfu", divisor=100.0),
    "tokens": Field("tokens_per_second"),
}


def step(line: Line) -> StepLine | None:
    head = last_match(_STEP, line.text)
    if head is None:
        return None
    items = list(_ITEM.finditer(line.text, head.end(), head.end() + _ITEMS_BYTES))
    if not any(item["milliseconds"] for item in items):
        return None
    values: list[Value] = []
    for match in (head, *items):
        for name, text in match.groupdict().items():
            if text is not None:
                is_unknown = name == "mfu" and text.startswith(b"-")
                values.append((None if is_unknown else _FIELDS[name], *match.span(name)))
    return StepLine([*values, *line.labels], head.start())


def evaluation(line: Line) -> Record | None:
    match = _EVALUATION.match(line.text[line.body :])
    return None if match is None else {"kind": "eval", "loss": _LOSS.read(match["loss"]), "split": "validation"}


def checkpoint(line: Line) -> Record | None:
    match = _WRITING.search(line.text)
    return None if match is None else {"kind": "checkpoint", "begun": True, "step": int(match["step"])}
