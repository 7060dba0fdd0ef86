"""OLMo and OLMo-core: steps of many lines, evaluations, checkpoints and the end of training.

A step begins with `[step=100/739328,epoch=0]`, followed by lines like `    train/CrossEntropyLoss=7.6`. For steps without
metrics, OLMo-core prints the first line alone. It shortens large numbers (`4.2M`). An evaluation names no step and gets the last
step.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, decimal
from lt_monitor.logs.line_parsers import ManyLines, last_match, pair, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import GIB, NUMBER

_HEAD = regex(
    rb"\[step=(?P<step>\d{1,15})/(?:(?P<total>\d{1,15})|\?\?\?)(?:,epoch=(?P<epoch>\d{1,9}))?(?:,eta=[^\]]{1,60})?\]\s{0,20}$"
)
_BELOW = regex(
    rb"[ \t]{2,12}(?P<key>[A-Za-z][\w /().%-]{0,120})=(?:(?P<value>" + NUMBER + rb")(?P<scale>[KMBT]?)\s{0,20}$|\S{0,200}$)"
)
_EVALUATION = regex(
    rb"[ \t]{2,12}(?:eval/)?(?P<split>[\w/.-]{1,120})/(?:CrossEntropyLoss|CE loss)=(?P<loss>" + NUMBER + rb")\s{0,20}$"
)
_SAVING = regex(rb"Saving checkpoint for step (?P<step>\d{1,15}) to '?(?P<path>[^\s']{1,4096}?)'?(?: asynchronously)?\.\.\.")
_SAVED = regex(rb"Checkpoint for step (?P<step>[\d,]{1,20}) saved successfully")
_SAVED_TO = regex(rb"Checkpoint saved to (?P<path>\S{1,4096}?/step(?P<step>\d{1,15})(?:-unsharded)?)/?\s{0,20}$")
_LOADING = regex(rb"Loading checkpoint from '?(?P<path>[^\s']{1,4096}/step(?P<step>\d{1,15})(?:-unsharded)?)/?'?")
_COMPLETE = regex(rb"(?:\]|INFO|\t) {0,8}Training complete\s{0,20}$")

_SCALES = {b"": 1.0, b"K": 1e3, b"M": 1e6, b"B": 1e9, b"T": 1e12}
_LOSS, _GRAD_NORM, _LEARNING_RATE = Field("loss"), Field("grad_norm"), Field("learning_rate")
_TOKENS, _BATCHES = Field("tokens_per_second_per_gpu"), Field("step_seconds", is_rate=True)
_FIELDS = {
    b"train/CrossEntropyLoss": _LOSS,
    b"train/CE loss": _LOSS,
    b"optim/total_grad_norm": _GRAD_NORM,
    b"optim/total grad norm": _GRAD_NORM,
    b"optim/learning_rate_group0": _LEARNING_RATE,
    b"optim/LR (group 0)": _LEARNING_RATE,
    b"optim/LR": _LEARNING_RATE,
    b"throughput/device/tokens_per_second": _TOKENS,
    b"throughput/device/TPS": _TOKENS,
    b"throughput/device/batches_per_second": _BATCHES,
    b"throughput/device/BPS": _BATCHES,
    b"throughput/device/MFU": Field("mfu", divisor=100.0),
    b"System/Peak GPU Memory (MB)": Field("memory_bytes", is_count=True, factor=1e6),
    b"system/GPU active mem (GiB)": Field("memory_bytes", is_count=True, factor=float(GIB)),
    b"system/GPU reserved mem (GiB)": Field("reserved_memory_bytes", is_count=True, factor=float(GIB)),
}


def _head(line: Line) -> Record | None:
    match = last_match(_HEAD, line.text)
    if match is None:
        return None
    names = {"step": "step", "total": "total_steps", "epoch": "epoch"}
    return {"kind": "step", **{field: int(match[name]) for name, field in names.items() if match[name]}}


def _below(text: bytes) -> Record | None:
    match = _BELOW.match(text)
    if match is None:
        return None
    if match["value"] is None:
        return {}
    record = pair(_FIELDS, match["key"], match["value"])
    return _scaled(record, _SCALES[match["scale"]]) if match["scale"] else record


def _scaled(record: Record, scale: float) -> Record:
    return {
        name: _scaled(value, scale) if isinstance(value, dict) else value if value is None else value * scale
        for name, value in record.items()
    }


STEP = ManyLines(_head, _below)


def evaluation(line: Line) -> Record | None:
    """Parse the cross-entropy on one of several held-out data sets."""
    match = _EVALUATION.match(line.text, line.body)
    if match is None or match["split"] == b"train":
        return None
    return {"kind": "eval", "loss": decimal(match["loss"].replace(b",", b"")), "split": match["split"].decode()}


def checkpoint(line: Line) -> Record | None:
    for pattern, kind, begun in ((_SAVING, "checkpoint", True), (_SAVED_TO, "checkpoint", False), (_LOADING, "load", True)):
        if (match := pattern.search(line.text)) is not None:
            record: Record = {"kind": kind, "step": int(match["step"]), "path": match["path"].decode(errors="replace")}
            return {**record, "begun": True} if begun else record
    if (match := _SAVED.search(line.text)) is not None:
        return {"kind": "checkpoint", "step": int(match["step"].replace(b",", b""))}
    return None


def ending(line: Line) -> Record | None:
    return {"kind": "end", "reason": "completed"} if _COMPLETE.search(line.text) is not None else None
