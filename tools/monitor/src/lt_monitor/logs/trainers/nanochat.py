"""nanochat's training scripts: steps, and validation in bits per byte, which becomes a metric because it is no loss.

Pretraining prints the total of steps; fine-tuning and derived programs print only a percentage. `mfu` is in percent, with or
without the sign. Validation in bits per byte (`Step 00250 | Validation bpb: 0.85`) is not comparable with a loss, so it is no
`eval`.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, Value
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

_STEP = regex(
    rb"\bstep (?P<step>\d{1,15})(?:/(?P<total>\d{1,15}))?(?: \((?P<share>[\d.]{1,12})%\))? {1,4}\| loss: (?P<loss>"
    + NUMBER
    + rb")"
    rb" \| ?(?P<pairs>[^\r\n]{1,500})"
)
_PAIR = regex(rb"(?P<key>grad norm|dt|tok/sec|bf16_mfu|mfu|epoch): {0,4}(?P<value>" + NUMBER + rb")")
_VALIDATION_LOSS = regex(rb"\bStep (?P<step>\d{1,15}) \| Validation loss: (?P<loss>" + NUMBER + rb")")

_FIELDS = {
    b"grad norm": Field("grad_norm"),
    b"dt": Field("step_seconds", divisor=1000.0),
    b"tok/sec": Field("tokens_per_second"),
    b"bf16_mfu": Field("mfu", divisor=100.0),
    b"mfu": Field("mfu", divisor=100.0),
    b"epoch": Field("epoch", is_count=True),
}


def step(line: Line) -> StepLine | None:
    match = last_match(_STEP, line.text)
    if match is None:
        return None
    values: list[Value] = [(Field("step", is_count=True), *match.span("step"))]
    if match["total"] is not None:
        values.append((Field("total_steps", is_count=True), *match.span("total")))
    if match["share"] is not None:
        values.append((None, *match.span("share")))
    values += [(Field("loss"), *match.span("loss")), (None, *match.span("pairs"))]
    end = match.start("pairs")
    for pair in _PAIR.finditer(line.text, *match.span("pairs")):
        values.append((_FIELDS[pair["key"]], *pair.span("value")))
        end = pair.end()
    return StepLine([*values, *line.labels], match.start(), end)


def evaluation(line: Line) -> Record | None:
    match = last_match(_VALIDATION_LOSS, line.text)
    if match is None:
        return None
    return {"kind": "eval", "step": int(match["step"]), "loss": Field("loss").read(match["loss"]), "split": "validation"}
