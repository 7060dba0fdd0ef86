"""modded-nanogpt: `step:125/1770 train_loss:4.2 train_time:9000ms step_avg:72.0ms`, and the same with `val_loss`.

`step_avg` is the mean step time of the run without its first ten steps, and nan during these; single step times are not printed.
Since 2025 only validation has a loss. `train_time` excludes validation and is not read.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, Value
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

_STEP = regex(
    rb"\bstep:(?P<step>\d{1,15})/(?P<total>\d{1,15})"
    rb"(?: train_loss:(?P<loss>" + NUMBER + rb")| val_loss:(?P<validation>" + NUMBER + rb"))?(?: val_\w{1,20}:[\d.]{1,20}){0,4}"
    rb" train_time:(?P<time>" + NUMBER + rb")m?s step_avg:(?P<milliseconds>" + NUMBER + rb")ms"
)

_FIELDS = {
    "step": Field("step", is_count=True),
    "total": Field("total_steps", is_count=True),
    "loss": Field("loss"),
    "time": None,
    "milliseconds": Field("step_seconds", divisor=1000.0),
}


def step(line: Line) -> StepLine | Record | None:
    match = last_match(_STEP, line.text)
    if match is None:
        return None
    if match["validation"] is not None:
        return {
            "kind": "eval",
            "step": int(match["step"]),
            "loss": Field("loss").read(match["validation"]),
            "split": "validation",
        }
    values: list[Value] = [(field, *match.span(name)) for name, field in _FIELDS.items() if match[name] is not None]
    return StepLine([*values, *line.labels], *match.span())
