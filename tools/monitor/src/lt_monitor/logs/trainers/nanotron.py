"""nanotron: `iteration: 5 / 100 | consumed_tokens: 1.2M | elapsed_time_per_iteration_ms: 1.2K | ... | lm_loss: 10.2 | ...`.

Its numbers have three digits and a suffix for powers of 1000 (K, M, B or G, T, P, E). Line templates cannot read the suffix, so
each line is parsed, in 10 microseconds. `global_batch_size` counted samples until March 2025 and counts tokens since, when the
time's key lost its `elapsed_`. If it is rounded or counts tokens, it stays a metric under its own name. A checkpoint's line is
printed before the checkpoint is written, and no line follows.
"""

import re

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import decimal
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

_HEAD = regex(rb"\biteration: (?P<step>\d{1,15}) / (?P<total>\d{1,15}) \| ")
_PAIR = regex(rb"(?P<key>[A-Za-z_][\w/.]{0,80}): {0,4}(?P<number>" + NUMBER + rb")(?P<suffix>[KMBGTPE]?)(?= {0,8}(?:\||$))")
_TIME = regex(rb"\b(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>20\d\d) (?P<clock>\d\d:\d\d:\d\d) \[[A-Z]{4,8}[|\]]")
_CHECKPOINT = regex(rb"\]: (?P<what>Saving|Loading) checkpoint (?:at|from) (?P<path>\S{0,4000}?(?P<step>\d{1,15}))/?:?\s*$")

_SUFFIXES = b" KMBTPE"
_FIELDS = {
    b"lm_loss": "loss",
    b"lr": "learning_rate",
    b"grad_norm": "grad_norm",
    b"tokens_per_sec": "tokens_per_second",
    b"tokens_per_sec_per_gpu": "tokens_per_second_per_gpu",
    b"model_tflops_per_gpu": "tflops_per_gpu",
}
_COUNTS = {
    b"global_batch_size": "global_batch_size",
    b"cuda_memory_allocated": "memory_bytes",
    b"cuda_max_memory_reserved": "reserved_memory_bytes",
}
_MILLISECONDS = (b"elapsed_time_per_iteration_ms", b"time_per_iteration_ms")


def step(line: Line) -> StepLine | None:
    head = last_match(_HEAD, line.text)
    if head is None:
        return None
    matches = list(_PAIR.finditer(line.text, head.end()))
    pairs = {pair["key"]: pair for pair in matches}
    record: Record = {"kind": "step", "step": int(head["step"]), "total_steps": int(head["total"])}
    metrics: Record = {}
    for key, pair in pairs.items():
        number = _number(pair)
        if key in _FIELDS:
            record[_FIELDS[key]] = number
        elif key in _MILLISECONDS:
            record["step_seconds"] = None if number is None else number / 1000
        elif key in _COUNTS and not (key == b"global_batch_size" and _is_inexact(pair, pairs)):
            record[_COUNTS[key]] = None if number is None else round(number)
        else:
            metrics[key.decode(errors="replace")] = number
    record |= _time(line, head) | ({"metrics": metrics} if metrics else {})
    return StepLine([], head.start(), (matches or [head])[-1].end(), record)


def _is_inexact(batch_size: re.Match[bytes], pairs: dict[bytes, re.Match[bytes]]) -> bool:
    """Whether the global batch size is rounded or counts tokens."""
    return bool(batch_size["suffix"]) or b"elapsed_time_per_iteration_ms" not in pairs


def checkpoint(line: Line) -> Record | None:
    match = _CHECKPOINT.search(line.text)
    if match is None:
        return None
    kind = "checkpoint" if match["what"] == b"Saving" else "load"
    path = match["path"].decode(errors="replace")
    return {"kind": kind, "begun": True, "step": int(match["step"]), "path": path, **_time(line, match)}


def _number(pair: re.Match[bytes]) -> float | None:
    """Convert digits and suffix by one decimal conversion, without the rounding error of a multiplication."""
    power = 3 * _SUFFIXES.index(pair["suffix"].replace(b"G", b"B")) if pair["suffix"] else 0
    return decimal(pair["number"].replace(b",", b"") + (b"e%d" % power if power else b""))


def _time(line: Line, before: re.Match[bytes]) -> Record:
    """Parse the line's time; nanotron prints the month first."""
    match = last_match(_TIME, line.text[: before.start()])
    if match is None:
        return {}
    parts = {name: text.decode() for name, text in match.groupdict().items()}
    return {"time": "{year}-{month}-{day}T{clock}".format(**parts)}
