"""AReaL: `Epoch 1/3 Step 12/100 Train step 112/300 done.`, and a table of the step's statistics some lines below.

    Stats (1/2):

    ╒═════════════════════════════════╤═════════════╤═════════════════════╤════════════╕
    │ ppo_actor/update/actor_loss/avg │ -2.5000e-04 │ timeperf/train_step │ 4.1800e+00 │
    ╘═════════════════════════════════╧═════════════╧═════════════════════╧════════════╛

There is a table for each mini-batch; the last one counts. `timeperf` times are those of parts of a step and stay metrics.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import decimal
from lt_monitor.logs.line_parsers import ManyLines, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

# Tables have at most some hundred rows.
MAXIMUM_LINES = 1000

_HEAD = regex(
    rb"\bEpoch (?P<epoch>\d{1,9})/\d{1,9} Step \d{1,15}/\d{1,15} Train step (?P<step>\d{1,15})/(?P<total>\d{1,15}) done\."
)
_BAR = "│".encode()
_PAIR = regex(_BAR + rb" {1,9}(?P<key>[A-Za-z][\w./-]{0,120}?) {1,200}" + _BAR + rb" {1,60}(?P<value>" + NUMBER + rb") {1,60}")
_FIELDS = (
    (regex(rb"(?:^|/)(?:actor_loss|loss)/avg$"), "loss"),
    (regex(rb"(?:^|/)update/grad_norm$|^sft/grad_norm$"), "grad_norm"),
    (regex(rb"(?:^|/)update/lr$|^sft/lr$"), "learning_rate"),
)


def _head(line: Line) -> Record | None:
    match = last_match(_HEAD, line.text)
    if match is None:
        return None
    # The line counts epochs from 1, records from 0.
    epoch = max(0, int(match["epoch"]) - 1)
    return {"kind": "step", "step": int(match["step"]), "total_steps": int(match["total"]), "epoch": epoch}


def _below(text: bytes) -> Record | None:
    if _HEAD.search(text) is not None:
        return None
    record: Record = {}
    for pair in _PAIR.finditer(text):
        key, value = pair["key"], decimal(pair["value"])
        field = next((name for pattern, name in _FIELDS if pattern.search(key) is not None), None)
        if field is not None and not key.startswith((b"critic", b"ppo_critic")):
            record[field] = value
        else:
            record.setdefault("metrics", {})[key.decode()] = value
    return record


STEP = ManyLines(_head, _below, most_lines=MAXIMUM_LINES)
