"""DeepSpeed: steps of its engine and of its pipeline engine, and steps that fp16 skipped.

The engine prints a line with the step and the learning rate, then a line with the speed. The second line counts steps from the
start of the process even after loading a checkpoint, so only the first line names the step; step 0 is the configuration.
Megatron, GPT-NeoX and Hugging Face's Trainer print another line for this step afterwards; once such a line was read, only the
trainer's lines count.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, Value, decimal
from lt_monitor.logs.line_parsers import ManyLines, StepLine, last_match, note, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import GIB, NUMBER

_HEAD = regex(rb"\[Rank 0\] step=(?P<step>\d{1,15}), skipped=(?P<skipped>\d{1,15}), lr=\[(?P<lr>" + NUMBER + rb")?")
_SPEED = regex(rb"\b(?:Curr)?SamplesPerSec=(?P<samples>" + NUMBER + rb")")
_MEMORY = regex(rb"MaxMemAllocated=(?P<memory>" + NUMBER + rb")GB")
_PIPELINE = regex(rb"\bsteps?: {1,8}(?P<step>\d{1,15})(?: / {1,8}(?P<total>\d{1,15}))? loss: (?P<loss>" + NUMBER + rb")")
_PIPELINE_PAIR = regex(rb" (?P<key>[a-z][a-z_ ]{0,40}?(?: \(s\))?|samples/sec): (?P<value>" + NUMBER + rb")(?= |$)")
_OVERFLOW = regex(
    rb"OVERFLOW! Rank (?P<rank>\d{1,9}) Skipping step\. Attempted loss scale: (?P<scale>[\d.e+]{1,40})"
    rb"(?:, reducing to (?P<next>[\d.e+]{1,40}))?"
)

_SUCCESS = regex(rb"\] Process \d{1,12} exits successfully")

_STEP, _TOTAL, _LOSS = Field("step", is_count=True), Field("total_steps", is_count=True), Field("loss")
_PIPELINE_FIELDS = {b"iter time (s)": Field("step_seconds"), b"samples/sec": Field("samples_per_second"), b"lm loss": _LOSS}


def _head(line: Line) -> Record | None:
    match = last_match(_HEAD, line.text)
    if match is None or int(match["step"]) == 0:
        return None
    record: Record = {"kind": "step", "step": int(match["step"]), "metrics": {"skipped": float(match["skipped"])}}
    if match["lr"]:
        record["learning_rate"] = decimal(match["lr"])
    return record


def _below(text: bytes) -> Record | None:
    speed = _SPEED.search(text)
    if speed is None:
        return None
    record: Record = {"samples_per_second": decimal(speed["samples"])}
    memory = _MEMORY.search(text)
    if memory is not None and (size := decimal(memory["memory"])) is not None:
        record["memory_bytes"] = round(size * GIB)
    return record


STEP = ManyLines(_head, _below, most_lines=1, is_engine=True)


def pipeline_step(line: Line) -> StepLine | None:
    """Parse a step. If the line has `lm loss`, it is the loss, because `loss` then includes auxiliary losses."""
    match = last_match(_PIPELINE, line.text)
    if match is None:
        return None
    pairs = list(_PIPELINE_PAIR.finditer(line.text, match.end()))
    has_parts = any(pair["key"] == b"lm loss" for pair in pairs)
    values: list[Value] = [
        (_STEP, *match.span("step")),
        (Field("total loss", is_metric=True) if has_parts else _LOSS, *match.span("loss")),
    ]
    if match["total"]:
        values.append((_TOTAL, *match.span("total")))
    for pair in pairs:
        key = pair["key"]
        values.append((_PIPELINE_FIELDS.get(key) or Field(key.decode(), is_metric=True), *pair.span("value")))
    return StepLine([*values, *line.labels], match.start())


def overflow(line: Line) -> Record | None:
    match = _OVERFLOW.search(line.text)
    if match is None:
        return None
    scales = {"loss_scale": decimal(match["scale"])}
    if match["next"]:
        scales["next_loss_scale"] = decimal(match["next"])
    return {**note(line, "overflow", scales, match.start()), "rank": int(match["rank"])}


def ending(line: Line) -> Record | None:
    """Parse the launcher's report, which it prints once per process."""
    return {"kind": "end", "reason": "completed"} if _SUCCESS.search(line.text) is not None else None
