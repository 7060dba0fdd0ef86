"""verl: `step:86 - actor/pg_loss:0.012 - actor/grad_norm:0.006 - ... - timing_s/step:80.120`, one line for each step.

All numbers have three decimals, so a learning rate of 1e-6 is printed as 0.000 and is left out. A line without training values is
a validation before the first step or between two steps.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import decimal
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import GIB, NUMBER

_HEAD = regex(rb"(?:^|[\s)\]])step:(?P<step>\d{1,15}) - (?=[\w.-]{1,60}[/:])")
_PAIR = regex(
    rb"(?:^| - )(?P<key>[A-Za-z_][\w/@.() -]{0,200}?):"
    rb"(?:np\.\w{1,20}\()?(?P<number>" + NUMBER + rb")\)?(?= - |\s{0,20}$)"
)
_TRAINING = regex(rb"^(?:training/global_step|actor/|critic/vf_|train/loss|timing_s/(?:step|update_actor))")
_VALIDATION = regex(rb"^val[-/]")

_LOSSES = (b"train/loss", b"actor/loss", b"actor/pg_loss")
_FIELDS = {
    b"actor/grad_norm": ("grad_norm", 1.0),
    b"train/grad_norm": ("grad_norm", 1.0),
    b"actor/lr": ("learning_rate", 1.0),
    b"train/lr": ("learning_rate", 1.0),
    b"train/lr(1e-3)": ("learning_rate", 1e-3),
    b"perf/mfu/actor": ("mfu", 1.0),
    b"train/mfu": ("mfu", 1.0),
    b"timing_s/step": ("step_seconds", 1.0),
    b"perf/time_per_step": ("step_seconds", 1.0),
    b"train/time(s)": ("step_seconds", 1.0),
    b"perf/throughput": ("tokens_per_second_per_gpu", 1.0),
}
_COUNTS = {
    b"perf/max_memory_allocated_gb": ("memory_bytes", GIB),
    b"perf/max_memory_reserved_gb": ("reserved_memory_bytes", GIB),
    b"training/epoch": ("epoch", 1),
}
_NOT_NEEDED = (b"training/global_step",)


def step(line: Line) -> StepLine | Record | None:
    head = last_match(_HEAD, line.text)
    if head is None:
        return None
    matches = list(_PAIR.finditer(line.text, head.end() - len(b" - ")))
    pairs = {match["key"]: decimal(match["number"]) for match in matches}
    number = int(head["step"])
    if not any(_TRAINING.match(key) for key in pairs):
        if b"val/loss" in pairs:
            return {"kind": "eval", "step": number, "loss": pairs[b"val/loss"], "split": "validation"}
        return None
    record: Record = {"kind": "step", "step": number}
    loss = next((key for key in _LOSSES if key in pairs), None)
    if loss is not None:
        record["loss"] = pairs[loss]
    metrics: Record = {}
    for key, value in pairs.items():
        if key in _FIELDS:
            field, factor = _FIELDS[key]
            if not (field == "learning_rate" and value == 0):
                record[field] = None if value is None else value * factor
        elif key in _COUNTS:
            field, factor = _COUNTS[key]
            record[field] = None if value is None else round(value * factor)
        elif key != loss and key not in _NOT_NEEDED:
            metrics[key.decode(errors="replace")] = value
    record |= {"metrics": metrics} if metrics else {}
    return StepLine([], head.start(), matches[-1].end() if matches else head.end(), record)
