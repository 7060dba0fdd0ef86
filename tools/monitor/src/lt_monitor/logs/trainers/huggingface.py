"""The Trainer of Hugging Face transformers and what prints alike: TRL, LLaMA-Factory, axolotl, ms-swift, Optimum Neuron.

It prints its figures as a dict, `{'loss': 2.5, 'grad_norm': 1.1, 'learning_rate': 5e-05, 'epoch': 0.12}`, in transformers 5 with
strings for numbers, around 2020 as JSON. A step's dict has a loss and an epoch or a step; `epoch` is a fraction and so a metric.

Most dicts do not name their step. A terminal shows a progress bar right behind the dict, and one before it if the step took
longer than a tenth of a second. The bar's count is the step. The bar behind the dict on the same line is preferred, because a bar
before it may lag. `step_numbers` completes a dict that has neither a step nor a bar on its line.
"""

import functools
import re

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, decimal, read_time
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import GIB, NUMBER

_FIGURES = regex(rb"\{(?P<body>(?P<quote>['\"])[^{}\r\n]{1,4000})\}")
_PAIR = regex(rb"(?P<quote>['\"])(?P<key>[^'\"{},:]{1,80})(?P=quote): ['\"]?(?P<value>" + NUMBER + rb")['\"]?(?=,|$)")
_STEP_OF_TOTAL = regex(rb"['\"]global_step/max_steps['\"]: ['\"](?P<step>\d{1,15})/(?P<total>\d{1,15})['\"]")
# The Trainer's bar has no description before the percentage, and ms-swift's has a fixed one. Bars of other loops have other
# descriptions and are ignored. Labels of kubectl, srun and torchrun may stand before the bar, and a logger's prefix, which ends
# in a dash, an arrow or a level.
_FRAME = (
    rb"(?:Train:)? {0,9}\d{1,3}%\|[^|\r\n]{0,999}\| {0,9}"
    rb"(?P<position>\d{1,15})/(?P<total>\d{1,15})"
    rb" \[[\d:]{4,20}<[\d:?]{1,20}, {1,9}(?:(?P<number>\d{1,9}(?:\.\d{0,9})?)|\?)(?P<unit>s/it|it/s)"
)
BAR = regex(
    rb"(?:^|[\r\n\]}]|\]: ?|\dZ |:\d\d(?:[.,]\d{1,9})? | - |>> | \| |\b(?:DEBUG|INFO|WARNING|ERROR)(?::[\w.]{0,100}:| ))"
    rb"(?: {0,8}\d{1,6}: )?" + _FRAME
)


@functools.lru_cache(maxsize=64)
def labelled_bar(label: bytes) -> re.Pattern[bytes]:
    """Return a pattern for a bar behind `label`, with any numbers in the label. The caller saw the label before a step's dict."""
    return re.compile(rb"(?:^|[\r\n])" + re.escape(label).replace(b"0", rb"\d{1,20}") + rb" {0,9}" + _FRAME)


_SAVING = regex(rb"Saving model checkpoint to (?P<path>\S{0,4000}checkpoint-(?P<step>\d{1,15}))/?\s*$")
_TOTALS = regex(rb"(?P<what>Total optimization steps|Total train batch size \([^)]{1,80}\)) = (?P<number>[\d,]{1,20})\s*$")
_LOGGED = regex(rb"\] (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) >> ")
_RESUMED = regex(rb"Continuing training from global step (?P<step>\d{1,15})")

_FIELDS = {
    b"loss": Field("loss"),
    b"grad_norm": Field("grad_norm"),
    b"learning_rate": Field("learning_rate"),
    b"lr": Field("learning_rate"),
    b"memory(GiB)": Field("memory_bytes", is_count=True, factor=float(GIB)),
    # The Trainer's and LLaMA-Factory's with include_num_input_tokens_seen, and TRL's: tokens since the start of the run.
    b"num_input_tokens_seen": Field("consumed_tokens", is_count=True),
    b"num_tokens": Field("consumed_tokens", is_count=True),
}
_STEP_KEYS = (b"step", b"global_step")
_SECONDS = Field("step_seconds")
_PER_SECOND = Field("step_seconds", is_rate=True)


def figures(line: Line) -> StepLine | Record | None:
    """Parse a step, a validation, or the end of the run. `step` is absent if the line has none."""
    match = last_match(_FIGURES, line.text)
    if match is None:
        return None
    pairs = {pair["key"]: pair["value"] for pair in _PAIR.finditer(match["body"])}
    numbered = _numbered(pairs, match["body"])
    if b"train_runtime" in pairs:
        return {"kind": "end", "reason": "completed", **numbered}
    if b"eval_loss" in pairs:
        record = {"kind": "eval", **numbered, "loss": decimal(pairs[b"eval_loss"]), "split": "validation"}
        seconds = {"seconds": decimal(pairs[b"eval_runtime"])} if b"eval_runtime" in pairs else {}
        return {**record, **seconds}
    if b"loss" not in pairs or not (b"epoch" in pairs or "step" in numbered):
        return None
    if match["quote"] == b'"' and not pairs.keys() >= {b"learning_rate", b"epoch"}:
        return None
    try:
        record = {"kind": "step", **(numbered or _beside(line.text, match)), **_values(pairs)}
    except ValueError:
        return None
    return StepLine([], *match.span(), record)


def _numbered(pairs: dict[bytes, bytes], body: bytes) -> Record:
    """Return the step that the dict names, if any."""
    of_total = _STEP_OF_TOTAL.search(body)
    if of_total is not None:
        return {"step": int(of_total["step"]), "total_steps": int(of_total["total"])}
    step = next((pairs[key] for key in _STEP_KEYS if key in pairs), b"")
    return {"step": int(step)} if step.isdigit() and len(step) <= 15 else {}


def _beside(text: bytes, dict_match: re.Match[bytes]) -> Record:
    """Parse a bar on the same line: the one behind the dict, else the one before it."""
    behind = BAR.search(text, dict_match.end() - 1)
    bar = behind or last_match(BAR, text[: dict_match.start()])
    return {} if bar is None else from_bar(bar)


def from_bar(bar: re.Match[bytes]) -> Record:
    """Return the step, total and speed of a bar's frame."""
    record: Record = {"step": int(bar["position"]), "total_steps": int(bar["total"])}
    if bar["number"] is not None:
        record["step_seconds"] = (_SECONDS if bar["unit"] == b"s/it" else _PER_SECOND).read(bar["number"])
    return record


def _values(pairs: dict[bytes, bytes]) -> Record:
    record: Record = {}
    metrics: Record = {}
    for key, text in pairs.items():
        if key in _FIELDS:
            field = _FIELDS[key]
            record[field.name] = field.read(text)
        elif key not in _STEP_KEYS:
            metrics[key.decode(errors="replace")] = decimal(text)
    return {**record, "metrics": metrics} if metrics else record


def lifecycle(line: Line) -> Record | None:
    """Parse the run's sizes, the step that it resumed from, and checkpoints. Only the begin of a checkpoint is printed."""
    record = _announced(line.text)
    logged = _LOGGED.search(line.text)
    time = read_time(logged["time"]) if logged else None
    return record if record is None or time is None else {**record, "time": time}


def _announced(text: bytes) -> Record | None:
    if (match := _SAVING.search(text)) is not None:
        return {"kind": "checkpoint", "begun": True, "step": int(match["step"]), "path": match["path"].decode(errors="replace")}
    if (match := _TOTALS.search(text)) is not None:
        argument = "train_iters" if match["what"].endswith(b"steps") else "global_batch_size"
        number = match["number"].replace(b",", b"")
        return {"kind": "start", "arguments": {argument: int(number)}} if number else None
    if (match := _RESUMED.search(text)) is not None:
        return {"kind": "load", "step": int(match["step"])}
    return None
