"""prime-rl: `Step 4 | Time: 0.35s | Loss: 12.3125 | Grad. Norm: 27.4481 | LR: 1.00e-06 | Throughput: 4737 tokens/s | MFU: 1.4%`.

The orchestrator prints such lines with a reward instead of a loss, in a log of its own. They become no events, because they count
the steps of the trainer.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, Value
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import GIB, NUMBER

_HEAD = regex(
    rb"\bStep (?P<step>\d{1,15}) \| Time: (?P<seconds>" + NUMBER + rb")s(?= \| (?:[A-Z][\w. ]{1,40}: \S{1,40} \| )?Loss: )"
)
_PAIR = regex(
    rb" \| (?P<key>[A-Z][\w. ]{1,40}): (?P<value>"
    + NUMBER
    + rb")(?:/"
    + NUMBER
    + rb")?(?:%| tokens/s| GiB(?: \((?P<share>[\d.]{1,9})%\))?)?"
)
_FINISHED = regex(rb"\bSUCCESS (?:SFT|RL) trainer finished!")
_STEP, _SECONDS = Field("step", is_count=True), Field("step_seconds")
_FIELDS = {
    b"Loss": Field("loss"),
    b"Grad. Norm": Field("grad_norm"),
    b"LR": Field("learning_rate"),
    b"Throughput": Field("tokens_per_second"),
    b"MFU": Field("mfu", divisor=100.0),
    b"Peak Mem.": Field("memory_bytes", is_count=True, factor=float(GIB)),
}


def step(line: Line) -> StepLine | None:
    head = last_match(_HEAD, line.text)
    if head is None:
        return None
    values: list[Value] = [(_STEP, *head.span("step")), (_SECONDS, *head.span("seconds"))]
    end = head.end()
    while (match := _PAIR.match(line.text, end)) is not None:
        field = _FIELDS.get(match["key"]) or Field(match["key"].decode().lower(), is_metric=True)
        values.append((field, *match.span("value")))
        if match["share"] is not None:
            values.append((None, *match.span("share")))
        end = match.end()
    return StepLine([*values, *line.labels], head.start(), end)


def ending(line: Line) -> Record | None:
    return {"kind": "end", "reason": "completed"} if _FINISHED.search(line.text) is not None else None
