"""NeMo 1 and 2, and Lightning's progress bars (NeMo, NxD Training, HyperPod's recipes).

A bar is drawn many times per step, and `global_step` lags the bar by one or two. The step is `global_step`; `deduplication`
removes the repetitions. The bar's total and its time per iteration (tqdm's running mean) are used.

Bars print a number with three digits and an exponent if that is shorter: steps from 30,950 to 31,049 are all `3.1e+4`, and from
100,000 on every step is rounded. A rounded step is computed from the consumed samples if the line shows samples and batch size
exactly. Otherwise it is the bar's count minus one, if that agrees with the printed digits. It disagrees if the bar also counts
validation batches or began at zero when the run resumed. Then the rounded step stays, because a count ahead of the exact steps
around it would look like a restart.
"""

import re

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, Value, read_values
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

# The most that `global_step` is behind the bar.
MAXIMUM_LAG = 2
SHOWN_DIGITS = 3

_BAR = regex(rb"Epoch {1,4}(?P<epoch>\d{1,9}): ")
_BAR_PAIRS = regex(rb"[ ,\[](?P<key>[A-Za-z_][A-Za-z0-9_ ./-]{0,60})=(?P<value>" + NUMBER + rb")(?:\.0)?(?=[,\]])")
_BAR_SPEED = regex(
    rb"(?P<percent>\d{1,3})%\|[^|]{0,999}\| {0,9}(?P<position>\d{1,15})/(?P<total>\d{1,15})"
    rb" \[(?P<elapsed>[\d:]{4,20})<(?P<left>[\d:?]{1,20})(?:, {1,9}(?P<number>\d{1,9}(?:\.\d{0,9})?)(?P<unit>s/it|it/s))?"
)
_EXACT_FRAME = regex(
    rb"\| {0,9}(?P<position>\d{1,15})/\d{1,15} \[[^\]\r\n]{0,600}?\bglobal_step=(?P<step>\d{1,15})(?:\.\d{0,9})?[,\]]"
)
_LINE = regex(rb"Training epoch (?P<epoch>\d{1,9}), iteration (?P<iteration>\d{1,15})/(?P<total>\d{1,15}) \|")
_LINE_PAIRS = regex(rb"\| (?P<key>[A-Za-z_][A-Za-z0-9_ ./-]{0,60}): (?P<value>" + NUMBER + rb")(?= \||\s*$)")
_SAVED = regex(
    rb"global step (?P<step>\d{1,15}): '[^']{1,80}' (?:reached [\d.e+-]{1,40}.{0,80}|was not in top \d{1,9})"
    rb", saving model to '(?P<path>[^']{1,4096})'"
)
_RESUMED = regex(rb"Restored all states from the checkpoint at (?P<path>\S{1,4096})")
_STEP_IN_PATH = regex(rb"step=(\d{1,15})")
_FINISHED = regex(rb"`Trainer\.fit` stopped: `(?P<limit>max_steps|max_epochs|max_time)=")

# The count of steps is the run's only in the first epoch.
_EPOCH = Field("epoch", is_count=True, is_constant=True)
_TOTAL = Field("total_steps", is_count=True)
_STEP_SECONDS = Field("step_seconds")
_STEPS_PER_SECOND = Field("step_seconds", is_rate=True)
_FIELDS = {
    b"global_step": Field("step", is_count=True),
    b"reduced_train_loss": Field("loss"),
    b"lr": Field("learning_rate"),
    b"consumed_samples": Field("consumed_samples", is_count=True),
    b"global_batch_size": Field("global_batch_size", is_count=True),
    b"train_step_timing in s": _STEP_SECONDS,
    b"gradient_norm": Field("grad_norm"),
    b"grad_norm": Field("grad_norm"),
    b"parameter_norm": Field("params_norm"),
    b"throughput": Field("samples_per_second"),
    b"TFLOPS_per_GPU": Field("tflops_per_gpu"),
    b"v_num": None,
}


def step(line: Line) -> StepLine | None:
    """Parse a frame of a bar, or a line of NeMo 2, that names the global step."""
    text = line.text
    head = last_match(_BAR, text)
    pattern = _BAR_PAIRS
    if head is None:
        head, pattern = _LINE.search(text), _LINE_PAIRS
        if head is None:
            return None
    values: list[Value] = [(_EPOCH, *head.span("epoch"))]
    if pattern is _LINE_PAIRS:
        first_epoch = int(head["epoch"]) == 0
        values.append((None, *head.span("iteration")))
        values.append((_TOTAL if first_epoch else None, *head.span("total")))
    after_head = head.end() - 1 if pattern is _BAR_PAIRS else head.end() - 2
    pairs = {pair["key"].strip(): pair.span("value") for pair in pattern.finditer(text, after_head)}
    if b"global_step" not in pairs:
        return None
    global_step = pairs.pop(b"global_step")
    values.insert(0, (_FIELDS[b"global_step"], *global_step))
    if b"loss" in pairs and b"reduced_train_loss" in pairs:
        # `loss` is Lightning's running mean.
        del pairs[b"loss"]
    bar = _BAR_SPEED.search(text, head.end()) if pattern is _BAR_PAIRS else None
    if bar is not None:
        values += _bar_speed(bar, int(head["epoch"]) == 0, b"train_step_timing in s" not in pairs)
    for key, span in pairs.items():
        field = _FIELDS[key] if key in _FIELDS else Field(key.decode(), is_metric=True)
        values.append((Field("loss") if key == b"loss" else field, *span))
    if not _is_rounded(text, global_step):
        return StepLine([*values, *line.labels], head.start())
    record = _with_rounded_step(text, values, pairs, int(head["epoch"]), bar)
    return None if record is None else StepLine([*values, *line.labels], head.start(), record=record)


def _is_rounded(text: bytes, span: tuple[int, int]) -> bool:
    return b"e" in text[slice(*span)].lower()


def _with_rounded_step(
    text: bytes, values: list[Value], pairs: dict[bytes, tuple[int, int]], epoch: int, bar: re.Match[bytes] | None
) -> Record | None:
    """Build the record of a line whose step has only three digits. `bar_position` is set if `step_numbers` must complete it."""
    try:
        record: Record = {"kind": "step", **read_values(text, values)}
    except ValueError:
        return None
    rounded = record["step"]
    candidates = []
    sizes = (b"consumed_samples", b"global_batch_size")
    if all(key in pairs and not _is_rounded(text, pairs[key]) for key in sizes):
        samples, batch_size = (record[key.decode()] for key in sizes)
        candidates += [samples // batch_size] if batch_size and samples % batch_size == 0 else []
    if bar is not None:
        candidates.append(epoch * int(bar["total"]) + int(bar["position"]) - 1)
    tolerance = 10 ** max(0, len(str(rounded)) - SHOWN_DIGITS) / 2 + MAXIMUM_LAG
    exact = next((step for step in candidates if abs(step - rounded) <= tolerance), None)
    if exact is not None:
        return {**record, "step": exact}
    return record if bar is None else {**record, "bar_position": int(bar["position"])}


def exact_lag(text: bytes) -> int | None:
    """Return step minus bar count of the last frame in `text` with an exact step."""
    frame = last_match(_EXACT_FRAME, text)
    return None if frame is None else int(frame["step"]) - int(frame["position"])


def _bar_speed(bar: re.Match[bytes], is_first_epoch: bool, is_only_time: bool) -> list[Value]:
    """Return the step, total and speed of a progress bar: `3/91 [16:05<7:52:06, 321.89s/it`, or `0.31it/s`."""
    field = _STEP_SECONDS if bar["unit"] == b"s/it" else _STEPS_PER_SECOND
    values: list[Value] = [(None, *bar.span(name)) for name in ("percent", "position", "elapsed", "left")]
    values.append((_TOTAL if is_first_epoch else None, *bar.span("total")))
    if bar["number"] is not None:
        values.append((field if is_only_time else None, *bar.span("number")))
    return values


def lifecycle(line: Line) -> Record | None:
    text = line.text
    if (match := _SAVED.search(text)) is not None:
        return {"kind": "checkpoint", "step": int(match["step"]), "path": match["path"].decode(errors="replace")}
    if (match := _RESUMED.search(text)) is not None:
        record: Record = {"kind": "load", "path": match["path"].decode(errors="replace")}
        in_path = _STEP_IN_PATH.search(match["path"])
        return {**record, "step": int(in_path[1])} if in_path else record
    if (match := _FINISHED.search(text)) is not None:
        return {"kind": "end", "reason": "duration" if match["limit"] == b"max_time" else "completed"}
    return None
