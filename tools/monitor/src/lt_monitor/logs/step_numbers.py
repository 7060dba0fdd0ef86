"""Number steps whose line has no step, or only its last three digits, from progress bars or by counting.

Hugging Face's Trainer prints dicts without a step (`trainers.huggingface`). The nearest frame of its progress bar within the last
LOOK_BACK_BYTES shows the number of finished steps; if steps are faster than the bar is drawn, the frame is a few steps behind. If
there is no bar, or the bar has not moved since the last dict, the step is the last step plus one, and `step_is_counted` is set.
Counting restarts when the epoch goes back.

Lightning's bar shows a step above 100,000 with three digits, and a step near 31,000 as 3.1e+4 (`trainers.nemo`). The bar's
iteration count distinguishes such steps. A frame with an exact step gives the difference between step and count. Before such a
frame, the first step is taken as the lowest number that is printed alike, so that no later exact step is lower, and
`step_is_counted` is set.
"""

import re
from typing import Any

from lt_monitor.events.records import Record
from lt_monitor.logs.line_parsers import last_match
from lt_monitor.logs.trainers.huggingface import BAR, from_bar, labelled_bar
from lt_monitor.logs.trainers.nemo import MAXIMUM_LAG, SHOWN_DIGITS, exact_lag

LOOK_BACK_BYTES = 4096
MAXIMUM_LABEL_BYTES = 300
_NUMBER = re.compile(rb"\d+")


class StepNumbers:
    """Numbers a log's steps in order. To continue an earlier parser, pass its `to_record()` as `state`."""

    def __init__(self, state: Record | None = None):
        state = state or {}
        self._last: int = state.get("last", 0)
        self._epoch: float = state.get("epoch", 0.0)
        # MLPerf logs count samples; this batch size converts them to steps.
        self._batch_size: int | None = state.get("batch_size")
        self._used: list[int] | None = state.get("used")
        # The last dict as printed and the number it got, because another process may print the same dict again.
        self._figures: Record = state.get("figures", {})
        self._number: Record = state.get("number", {})
        # The last progress bar so far, and the number of bytes after it.
        self._bar: Record = state.get("bar", {})
        self._bar_distance: int = state.get("bar_distance", LOOK_BACK_BYTES)
        # Lightning's step minus its bar's count, and whether an exact step confirmed the difference.
        self._lag: int | None = state.get("lag")
        self._is_lag_exact: bool = state.get("is_lag_exact", False)

    def to_record(self) -> Record:
        return {
            "last": self._last,
            "epoch": self._epoch,
            "batch_size": self._batch_size,
            "used": self._used,
            "figures": self._figures,
            "number": self._number,
            "bar": self._bar,
            "bar_distance": self._bar_distance,
            "lag": self._lag,
            "is_lag_exact": self._is_lag_exact,
        }

    def note(self, record: Record) -> None:
        """Remember the step that a many-line step names."""
        self._last = record.get("step", self._last)

    def note_batch_size(self, record: Record) -> None:
        """Remember the batch size that an entry of MLPerf's log names."""
        fields = record.get("fields", {})
        if record.get("note") == "mlperf" and fields.get("key") == "global_batch_size":
            size = fields.get("value")
            self._batch_size = size if type(size) is int and size > 0 else None

    def complete(self, record: Record, block: bytes, begin: int) -> None:
        """Number the step at `begin` of the block. A step with a number is only remembered."""
        if record["kind"] != "step":
            return
        if "bar_position" in record:
            self._separate(record, record.pop("bar_position"), exact_lag(block[max(0, begin - LOOK_BACK_BYTES) : begin]))
            return
        epoch = _number(record.get("metrics", {}).get("epoch"))
        if epoch < self._epoch:
            self._last = 0
        self._epoch = epoch
        samples = record.get("consumed_samples")
        if "step" not in record and samples and self._batch_size is not None:
            record["step"] = samples // self._batch_size
        if "step" not in record:
            self._add_number(record, self._bar_before(block, begin))
        self._last = record["step"]

    def _add_number(self, record: Record, bar: Record) -> None:
        frame = [bar["step"], bar["total_steps"]] if bar else None
        figures = {field: value for field, value in record.items() if field != "time"}
        if figures == self._figures and (frame is None or frame == self._used):
            record.update(self._number)
            return
        if frame is None or frame == self._used:
            record.update(step=self._last + 1, step_is_counted=True)
        else:
            # The bar may have been drawn before the step finished. A step that other lines named is newer than the bar.
            is_behind = 0 < self._last - bar["step"] <= MAXIMUM_LAG
            record.update(bar | {"step": self._last} if is_behind else bar)
        self._used = frame
        self._figures = figures
        self._number = {field: value for field, value in record.items() if field not in figures and field != "time"}

    def _separate(self, record: Record, position: int, lag: int | None) -> None:
        """Number a step that was printed with three digits. `lag` comes from an exact step just before it, if there is one."""
        shown = record["step"]
        half = 10 ** max(0, len(str(shown)) - SHOWN_DIGITS) // 2
        if lag is not None:
            self._lag, self._is_lag_exact = lag, True
        if self._lag is None or abs(position + self._lag - shown) > half:
            self._lag, self._is_lag_exact = shown - half - position, False
        record["step"] = position + self._lag
        if not self._is_lag_exact:
            record["step_is_counted"] = True

    def _bar_before(self, block: bytes, begin: int) -> Record:
        bar = last_bar_in(block[max(0, begin - LOOK_BACK_BYTES) : begin], label_at(block, begin))
        if bar is not None:
            return from_bar(bar)
        return self._bar if self._bar_distance + begin <= LOOK_BACK_BYTES else {}

    def end_block(self, block: bytes) -> None:
        """Remember the last bar of a finished block."""
        tail = block[-LOOK_BACK_BYTES:]
        bar = last_bar_in(tail)
        if bar is not None:
            self._bar, self._bar_distance = from_bar(bar), len(tail) - bar.start()
        else:
            self._bar_distance = min(LOOK_BACK_BYTES + 1, self._bar_distance + len(block))

    def end_without_bar(self) -> None:
        """Note that a block, of which only some lines were read, had no bar at its end."""
        self._bar_distance = LOOK_BACK_BYTES + 1


def last_bar(block: bytes, first: int, begin: int) -> tuple[int, int] | None:
    """Return begin and end of the line of the last bar before `begin`; None if it is before `first` or too far away."""
    first = max(first, begin - LOOK_BACK_BYTES)
    bar = last_bar_in(block[first:begin], label_at(block, begin))
    if bar is None:
        return None
    at = first + bar.start("position")
    end = block.find(b"\n", at)
    return max(first, block.rfind(b"\n", first, at) + 1), end if end >= 0 else begin


def last_bar_in(text: bytes, label: bytes = b"") -> re.Match[bytes] | None:
    """Return the last bar in a text; if there is none, the last bar behind `label`, the text before the step's dict."""
    if b"it/s" not in text and b"s/it" not in text:
        return None
    bar = last_match(BAR, text)
    return last_match(labelled_bar(_NUMBER.sub(b"0", label)), text) if bar is None and label else bar


def label_at(block: bytes, begin: int) -> bytes:
    """Return the text before a trainer's dict, on the line that begins at `begin`."""
    end = block.find(b"{", begin, begin + MAXIMUM_LABEL_BYTES)
    label = block[begin : max(begin, end)]
    return b"" if b"\n" in label or b"%|" in label else label.rstrip(b" ")


def _number(value: Any) -> float:
    return value if isinstance(value, (int, float)) else 0.0
