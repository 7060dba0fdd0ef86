"""ArcticTraining: `iter:  20/1000   2% | loss: 1.2345 | iter time: 5.1 s | iter tflops: 123.4 | lr: 1.000E-05 | ... | epoch: 0`.

An iteration is a batch of the loader, and a step unless gradients are accumulated.
"""

from lt_monitor.logs.fields import Field, Value
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

_HEAD = regex(rb"\biter: {1,15}(?P<step>\d{1,15})/(?P<total>\d{1,15}) {1,4}(?P<percent>\d{1,3})%(?= \| )")
_PAIR = regex(rb" \| (?P<key>[a-z][a-z ]{0,40}): (?P<value>" + NUMBER + rb")(?P<unit>[KMGTB]| s)?(?= \||\s{0,20}$)")
_STEP, _TOTAL = Field("step", is_count=True), Field("total_steps", is_count=True)
_FIELDS = {
    b"loss": Field("loss"),
    b"iter time": Field("step_seconds"),
    b"iter tflops": Field("tflops_per_gpu"),
    b"lr": Field("learning_rate"),
    b"epoch": Field("epoch", is_count=True),
    # Printed with a unit that changes from line to line.
    b"seqlen total": None,
}


def step(line: Line) -> StepLine | None:
    head = last_match(_HEAD, line.text)
    if head is None:
        return None
    values: list[Value] = [(_STEP, *head.span("step")), (_TOTAL, *head.span("total")), (None, *head.span("percent"))]
    end = head.end()
    while (match := _PAIR.match(line.text, end)) is not None:
        key = match["key"]
        values.append((_FIELDS[key] if key in _FIELDS else Field(key.decode(), is_metric=True), *match.span("value")))
        end = match.end()
    return StepLine([*values, *line.labels], head.start(), end)
