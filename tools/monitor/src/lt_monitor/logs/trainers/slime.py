"""slime: `step 2: {'train/loss': 0.0123, 'train/grad_norm': 0.31, 'train/lr-pg_0': 1e-06, 'train/step': 2}`.

A rollout has one or more steps. The line `perf 2: {'perf/step_time': 14.18, ...}` is about a whole rollout and becomes no event,
because a step's time does not follow from it.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import decimal
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

_HEAD = regex(rb"\bstep (?P<step>\d{1,15}): \{(?='train/)")
_PAIR = regex(rb"'train/(?P<key>[\w/@.-]{1,100})': (?:tensor\()?(?P<number>" + NUMBER + rb")\)?(?=[,}])")
_LEARNING_RATE = regex(rb"lr-pg_\d{1,3}$")
_FIELDS = {b"loss": "loss", b"grad_norm": "grad_norm"}


def step(line: Line) -> StepLine | None:
    head = last_match(_HEAD, line.text)
    if head is None:
        return None
    record: Record = {"kind": "step", "step": int(head["step"])}
    metrics: Record = {}
    end = head.end()
    for pair in _PAIR.finditer(line.text, head.end()):
        end, key, value = pair.end(), pair["key"], decimal(pair["number"])
        if key in _FIELDS:
            record[_FIELDS[key]] = value
        elif _LEARNING_RATE.match(key) is not None:
            record.setdefault("learning_rate", value)
        elif key != b"step":
            metrics[key.decode(errors="replace")] = value
    if "loss" not in record:
        return None
    record |= {"metrics": metrics} if metrics else {}
    return StepLine([], head.start(), end, record)
