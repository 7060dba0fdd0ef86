"""NeMo-RL: `========================= Step 2/200 =========================`, and the step's results some lines below.

    Training Results:
      • Loss: 0.6645
    ...
      • Total step time: 12.41s

Rollouts, evaluations and other processes print lines between. The heading comes when the step begins, so a step without results
is no event.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import decimal
from lt_monitor.logs.line_parsers import ManyLines, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

MAXIMUM_LINES = 5000
_HEAD = regex(rb"={5,60} Step (?P<step>\d{1,15})/(?P<total>\d{1,15}) ={5,60}\s{0,20}$")
_RESULT = regex(rb"\s{1,8}\xe2\x80\xa2 (?P<key>[A-Z][\w .]{1,60}): (?P<value>" + NUMBER + rb")s?\s{0,20}$")
_FIELDS = {b"Loss": "loss", b"Total step time": "step_seconds"}
_METRICS = frozenset({b"Avg Reward", b"Mean Generation Length", b"Generation KL Error", b"Training FLOPS"})


def _head(line: Line) -> Record | None:
    match = last_match(_HEAD, line.text)
    return None if match is None else {"kind": "step", "step": int(match["step"]), "total_steps": int(match["total"])}


def _below(text: bytes) -> Record | None:
    if _HEAD.search(text) is not None:
        return None
    match = _RESULT.match(text)
    if match is None:
        return {}
    key, value = match["key"], decimal(match["value"])
    if key in _FIELDS:
        return {_FIELDS[key]: value}
    return {"metrics": {key.decode(): value}} if key in _METRICS else {}


STEP = ManyLines(_head, _below, most_lines=MAXIMUM_LINES, needs_values=True)
