"""NeMo 1 and 2, Lightning's progress bars (NeMo, NxD Training, HyperPod's recipes), and the NxD examples.

A bar is drawn many times for one step, and `global_step` lags the bar by one or two: the step is `global_step`, and repetitions
are removed later (`deduplication`). The bar's own count is not used, its total is, and what it says an iteration takes: tqdm's
running mean.
"""

import re

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, Value
from lt_monitor.logs.formats import StepLine, last_match
from lt_monitor.logs.lines import Line
from lt_shared.run_log import NUMBER

_BAR = re.compile(rb"Epoch {1,4}(?P<epoch>\d{1,9}): ")
_BAR_PAIRS = re.compile(rb"[ ,\[](?P<key>[A-Za-z_][A-Za-z0-9_ ./-]{0,60})=(?P<value>" + NUMBER + rb")(?=[,\]])")
_BAR_SPEED = re.compile(
    rb"(?P<percent>\d{1,3})%\|[^|]{0,999}\| {0,9}(?P<position>\d{1,15})/(?P<total>\d{1,15})"
    rb" \[(?P<elapsed>[\d:]{4,20})<(?P<left>[\d:?]{1,20})(?:, {1,9}(?P<number>\d{1,9}(?:\.\d{0,9})?)(?P<unit>s/it|it/s))?"
)
_LINE = re.compile(rb"Training epoch (?P<epoch>\d{1,9}), iteration (?P<iteration>\d{1,15})/(?P<total>\d{1,15}) \|")
_LINE_PAIRS = re.compile(rb"\| (?P<key>[A-Za-z_][A-Za-z0-9_ ./-]{0,60}): (?P<value>" + NUMBER + rb")(?= \||\s*$)")
_SAVED = re.compile(
    rb"global step (?P<step>\d{1,15}): '[^']{1,80}' (?:reached [\d.e+-]{1,40}.{0,80}|was not in top \d{1,9})"
    rb", saving model to '(?P<path>[^']{1,4096})'"
)
_RESUMED = re.compile(rb"Restored all states from the checkpoint at (?P<path>\S{1,4096})")
_STEP_IN_PATH = re.compile(rb"step=(\d{1,15})")
_FINISHED = re.compile(rb"`Trainer\.fit` stopped: `(?P<limit>max_steps|max_epochs|max_time)=")
_NXD_STEP = re.compile(
    rb"\bstep (?P<step>\d{1,15}) step_time (?P<seconds>" + NUMBER + rb")s throughput (?P<throughput>" + NUMBER + rb") seq/s"
    rb" loss (?P<loss>" + NUMBER + rb")(?: grad norm (?P<grad_norm>" + NUMBER + rb"))?"
)

# Only the first epoch's count of steps is the run's.
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
_NXD_FIELDS = {
    "step": Field("step", is_count=True),
    "seconds": _STEP_SECONDS,
    "throughput": Field("samples_per_second"),
    "loss": Field("loss"),
    "grad_norm": Field("grad_norm"),
}


def step(line: Line) -> StepLine | None:
    """A frame of a bar or a line of NeMo 2 that names the global step."""
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
    rest = head.end() - 1 if pattern is _BAR_PAIRS else head.end() - 2
    pairs = {pair["key"].strip(): pair.span("value") for pair in pattern.finditer(text, rest)}
    if b"global_step" not in pairs:
        return None
    values.insert(0, (_FIELDS[b"global_step"], *pairs.pop(b"global_step")))
    if b"loss" in pairs and b"reduced_train_loss" in pairs:
        # Lightning's own running mean.
        del pairs[b"loss"]
    if pattern is _BAR_PAIRS:
        values += _bar_speed(text, head.end(), int(head["epoch"]) == 0, b"train_step_timing in s" not in pairs)
    for key, span in pairs.items():
        known = key in _FIELDS
        field = _FIELDS[key] if known else Field(key.decode(), is_metric=True)
        values.append((Field("loss") if key == b"loss" else field, *span))
    return StepLine([*values, *line.labels], head.start())


def _bar_speed(text: bytes, begin: int, is_first_epoch: bool, is_only_time: bool) -> list[Value]:
    """Step, total and speed of a progress bar: `3/91 [16:05<7:52:06, 321.89s/it`, or `0.31it/s`."""
    bar = _BAR_SPEED.search(text, begin)
    if bar is None:
        return []
    field = _STEP_SECONDS if bar["unit"] == b"s/it" else _STEPS_PER_SECOND
    values: list[Value] = [(None, *bar.span(name)) for name in ("percent", "position", "elapsed", "left")]
    values.append((_TOTAL if is_first_epoch else None, *bar.span("total")))
    if bar["number"] is not None:
        values.append((field if is_only_time else None, *bar.span("number")))
    return values


def nxd_step(line: Line) -> StepLine | None:
    match = _NXD_STEP.search(line.text)
    if match is None:
        return None
    values: list[Value] = [(field, *match.span(name)) for name, field in _NXD_FIELDS.items() if match[name] is not None]
    return StepLine([*values, *line.labels])


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
