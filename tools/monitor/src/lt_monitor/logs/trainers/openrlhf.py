"""OpenRLHF: `Global step 12: {'policy_loss': 0.01, 'actor_lr': 1e-06, ...}` of PPO and its relatives, and the bars of tuning.

`Train step of epoch 1:  40%|####      | 40/100 [00:30<00:45,  1.33it/s, gpt_loss=2.31, lr=9.1e-6]` is the bar of SFT, DPO, reward
models and distillation. Its iterations are steps unless gradients are accumulated, and begin again in every epoch.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, decimal
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

_HEAD = regex(rb"\bGlobal step (?P<step>\d{1,15}): \{(?='[a-z])")
_PAIR = regex(rb"'(?P<key>[\w/.-]{1,100})': (?P<number>" + NUMBER + rb")(?=[,}])")
_BAR = regex(
    rb"\bTrain step of epoch (?P<epoch>\d{1,9}): {1,9}\d{1,3}%\|[^|\r\n]{0,999}\| {0,9}(?P<step>\d{1,15})/(?P<total>\d{1,15})"
    rb" \[[\d:]{4,20}<[\d:?]{1,20}, {1,9}(?:(?P<number>\d{1,9}(?:\.\d{0,9})?)|\?)(?P<unit>s/it|it/s)(?P<pairs>[^\]\r\n]{1,999})\]"
)
_BAR_PAIR = regex(rb", (?P<key>[A-Za-z_]\w{0,60})=(?P<number>" + NUMBER + rb")(?=,|$)")
_SECONDS, _PER_SECOND = Field("step_seconds"), Field("step_seconds", is_rate=True)
_FIELDS = {
    b"policy_loss": "loss",
    b"actor_lr": "learning_rate",
    b"actor_grad_norm": "grad_norm",
    b"timing/step_total": "step_seconds",
}
_BAR_FIELDS = {b"gpt_loss": "loss", b"loss": "loss", b"lr": "learning_rate", b"grad_norm": "grad_norm"}


def step(line: Line) -> StepLine | None:
    head = last_match(_HEAD, line.text)
    if head is None:
        return None
    record: Record = {"kind": "step", "step": int(head["step"])}
    end = head.end()
    for pair in _PAIR.finditer(line.text, head.end()):
        end = pair.end()
        _add(record, pair["key"], decimal(pair["number"]), _FIELDS)
    return StepLine([], head.start(), end, record) if end > head.end() else None


def bar(line: Line) -> StepLine | None:
    match = last_match(_BAR, line.text)
    if match is None:
        return None
    epoch, total = int(match["epoch"]), int(match["total"])
    record: Record = {"kind": "step", "step": epoch * total + int(match["step"]), "epoch": epoch}
    for pair in _BAR_PAIR.finditer(match["pairs"]):
        _add(record, pair["key"], decimal(pair["number"]), _BAR_FIELDS)
    if "loss" not in record:
        return None
    if match["number"] is not None:
        record["step_seconds"] = (_SECONDS if match["unit"] == b"s/it" else _PER_SECOND).read(match["number"])
    return StepLine([], match.start(), match.end(), record)


def _add(record: Record, key: bytes, value: float | None, fields: dict[bytes, str]) -> None:
    if key in fields:
        record[fields[key]] = value
    else:
        record.setdefault("metrics", {})[key.decode(errors="replace")] = value
