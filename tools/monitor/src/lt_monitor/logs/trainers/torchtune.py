"""torchtune: the bar `1|100|Loss: 0.14:  99%|...| 100/101 [1:53:29<01:09, 69.90s/it]`, and the lines `Step 100 | loss:0.14 ...`.

The bar shows epoch and step; its own count restarts in every epoch. StdoutLogger and DiskLogger write the lines.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, decimal
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import GIB, NUMBER

_BAR = regex(
    rb"(?:^|[^\d|])(?P<epoch>\d{1,9})\|(?P<step>\d{1,15})\|Loss: (?P<loss>" + NUMBER + rb")"
    rb"(?:, [\w ]{1,40}: [^|:]{1,40})?(?:: {1,9}\d{1,3}%\|[^|\r\n]{0,999}\| {0,9}\d{1,15}/\d{1,15}"
    rb" \[[\d:]{4,20}<[\d:?]{1,20}, {1,9}(?:(?P<number>\d{1,9}(?:\.\d{0,9})?)|\?)(?P<unit>s/it|it/s)[^\]\r\n]{0,80}\]?)?"
)
_HEAD = regex(rb"(?:^|[\s\]])Step (?P<step>\d{1,15}) \| (?=\S{0,80}loss:)")
_PAIR = regex(rb"(?P<key>[A-Za-z_][\w/.-]{0,80}):(?:tensor\()?(?P<number>" + NUMBER + rb")\)?(?=\s|,|$)")

_SECONDS, _PER_SECOND = Field("step_seconds"), Field("step_seconds", is_rate=True)
_FIELDS = {
    b"loss": "loss",
    b"lr": "learning_rate",
    b"grad_norm": "grad_norm",
    b"tokens_per_second_per_gpu": "tokens_per_second_per_gpu",
}
_MEMORY = {b"peak_memory_alloc": "memory_bytes", b"peak_memory_reserved": "reserved_memory_bytes"}


def bar(line: Line) -> StepLine | None:
    match = last_match(_BAR, line.text)
    if match is None:
        return None
    record: Record = {
        "kind": "step",
        "step": int(match["step"]),
        "loss": decimal(match["loss"]),
        # The bar counts epochs from 1, records from 0.
        "epoch": max(0, int(match["epoch"]) - 1),
    }
    if match["number"] is not None:
        record["step_seconds"] = (_SECONDS if match["unit"] == b"s/it" else _PER_SECOND).read(match["number"])
    return StepLine([], match.start("epoch"), match.end(), record)


def step(line: Line) -> StepLine | None:
    head = last_match(_HEAD, line.text)
    if head is None:
        return None
    record: Record = {"kind": "step", "step": int(head["step"])}
    metrics: Record = {}
    end = head.end()
    for pair in _PAIR.finditer(line.text, head.end()):
        end, value = pair.end(), decimal(pair["number"])
        if pair["key"] in _FIELDS:
            record[_FIELDS[pair["key"]]] = value
        elif pair["key"] in _MEMORY:
            record[_MEMORY[pair["key"]]] = None if value is None else round(value * GIB)
        else:
            metrics[pair["key"].decode(errors="replace")] = value
    if "loss" not in record:
        return None
    record |= {"metrics": metrics} if metrics else {}
    return StepLine([], head.start(), end, record)
