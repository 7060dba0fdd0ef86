"""Composer, MosaicML's trainer, and llm-foundry, which trains with it: steps of many lines, progress bars, evaluations.

A step begins with `[batch=5/4800]:`, followed by lines like `  Train loss/train/total: 11.1`. If a run counts epochs or tokens,
the first line does not name the step. Then the line `time/batch` names it: it counts the batches before this one.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, Value, decimal
from lt_monitor.logs.line_parsers import ManyLines, StepLine, last_match, pair, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

_HEAD = regex(
    rb"(?:\[epoch=(?P<epoch>\d{1,9})\])?\[(?P<unit>batch|token|sample)=(?P<count>\d{1,18})(?:/(?P<total>\d{1,18}))?\]:\s{0,200}$"
)
_BELOW = regex(rb"[ \t]{1,40}Train (?P<key>[^\s:][^:]{0,200}): {0,4}(?:(?P<value>-?" + NUMBER + rb")\s{0,200}$|[^:]{0,500}$)")
_EVALUATION = regex(
    rb"Eval (?:metrics/(?P<split>[\w./-]{1,120})/LanguageCrossEntropy|loss/eval/total): (?P<loss>" + NUMBER + rb")\s{0,200}$"
)
_ONE_LINE = regex(
    rb"(?:\[epoch=(?P<epoch>\d{1,9})\])?\[batch=(?P<step>\d{1,15})/(?P<total>\d{1,15})\]: {1,4}"
    rb"loss/train/total: (?P<loss>" + NUMBER + rb")\s{0,20}$"
)
_BAR = regex(
    rb"\btrain {1,40}(?:Epoch {1,8}(?P<epoch>\d{1,9}): {1,8})?(?P<percent>\d{1,3})%\|[^|]{0,400}\| {0,9}"
    rb"(?P<step>\d{1,15})/(?P<total>\d{1,15})"
    rb" \[(?P<elapsed>[\d:]{4,20})<(?P<left>[\d:?]{1,20}), {1,9}(?:(?P<number>\d{1,9}(?:\.\d{0,9})?)|\?)(?P<unit>s/ba|ba/s)"
    rb", loss/train/total=(?P<loss>" + NUMBER + rb")"
)

_STEP, _TOTAL, _LOSS = Field("step", is_count=True), Field("total_steps", is_count=True), Field("loss")
_SECONDS, _BATCHES = Field("step_seconds"), Field("step_seconds", is_rate=True)
_BATCHES_BEFORE = b"time/batch"
# Composer's gigabyte is 10^9 bytes.
_FIELDS = {
    b"loss/train/total": _LOSS,
    b"l2_norm/grad/global": Field("grad_norm"),
    b"throughput/batches_per_sec": _BATCHES,
    b"throughput/samples_per_sec": Field("samples_per_second"),
    b"throughput/tokens_per_sec": Field("tokens_per_second"),
    b"throughput/device/tokens_per_sec": Field("tokens_per_second_per_gpu"),
    b"throughput/device/flops_per_sec": Field("tflops_per_gpu", divisor=1e12),
    b"throughput/device/mfu": Field("mfu"),
    b"memory/peak_allocated_mem": Field("memory_bytes", is_count=True, factor=1e9),
    b"memory/peak_reserved_mem": Field("reserved_memory_bytes", is_count=True, factor=1e9),
}


def _head(line: Line) -> Record | None:
    match = last_match(_HEAD, line.text)
    if match is None:
        return None
    record: Record = {"kind": "step"}
    if match["epoch"] is not None:
        record["epoch"] = int(match["epoch"])
    elif match["unit"] == b"batch":
        record["step"] = int(match["count"])
        if match["total"] is not None:
            record["total_steps"] = int(match["total"])
    return record


def _below(text: bytes) -> Record | None:
    match = _BELOW.match(text)
    if match is None:
        return None
    if match["value"] is None:
        return {}
    if match["key"] == _BATCHES_BEFORE and match["value"].isdigit():
        return {"step": int(match["value"]) + 1}
    return pair(_FIELDS, match["key"], match["value"])


STEP = ManyLines(_head, _below)


def step(line: Line) -> StepLine | Record | None:
    """Parse a line of versions with one line per value, or a frame of the progress bar. Both count steps within an epoch."""
    match = last_match(_ONE_LINE, line.text) or last_match(_BAR, line.text)
    if match is None:
        return None
    groups = match.groupdict()
    number, unit = groups.get("number"), groups.get("unit")
    speed = _SECONDS if unit == b"s/ba" else _BATCHES
    if match["epoch"] is not None and int(match["epoch"]) > 0:
        epoch = int(match["epoch"])
        record: Record = {"kind": "step", "step": epoch * int(match["total"]) + int(match["step"]), "epoch": epoch}
        if number is not None:
            record[speed.name] = speed.read(number)
        return {**record, "loss": decimal(match["loss"].replace(b",", b""))}
    values: list[Value] = [(None, *match.span(name)) for name in ("percent", "elapsed", "left") if name in groups]
    # In a run that counts epochs, the printed total covers one epoch only.
    values += [(_STEP, *match.span("step")), (_TOTAL if match["epoch"] is None else None, *match.span("total"))]
    values.append((_LOSS, *match.span("loss")))
    if number is not None:
        values.append((speed, *match.span("number")))
    return StepLine([*values, *line.labels], match.start())


def evaluation(line: Line) -> Record | None:
    match = _EVALUATION.search(line.text)
    if match is None:
        return None
    split = (match["split"] or b"eval").decode()
    loss = decimal(match["loss"].replace(b",", b""))
    return {"kind": "eval", "loss": loss, "split": "validation" if split == "eval" else split}
