"""Strip the prefixes that launchers and terminals add to a log line.

These prefixes are removed, in any order and number: the time and the pod of `kubectl logs --timestamps --prefix`, the task of
`srun --label`, the rank of torchrun's `--tee`, colours. A parser searches for its event anywhere after the prefixes, because a
progress bar or an unfinished line of a dead process may come first. In that case the labels nearest before the event count.
"""

import bisect
import re
import sys

from lt_monitor.logs.fields import RANK, TASK, TIME, Value, read_time

CONTROL_SEQUENCE = re.compile(rb"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]")
# If the ESC byte was lost, only a known text after the sequence shows that it was a colour.
_LOST_ESCAPE = re.compile(rb"\[(?:\d{1,3};?){1,8}m(?:validate )?(?:step|loss):")
_COLOUR_WITHOUT_ESCAPE = re.compile(rb"\[(?:\d{1,3};?){1,8}m")
_PREFIX = re.compile(
    rb"(?:(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) "
    rb"|\[pod/(?P<pod>[^\]/ ]{1,253})(?:/[^\] ]{0,253})?\] "
    rb"| {0,8}(?P<task>\d{1,6}): "
    rb"|\[(?P<role>[a-z]{1,20})(?P<rank>\d{1,6})\]: ?"
    rb"|\[titan\] ){0,8}"
)
# A progress bar of tqdm or Lightning ends without a newline, so the next output follows on the same line.
_BAR = re.compile(rb"[^|\r\n]{0,200}?\d{1,3}%\|[^|\r\n]{0,400}\| {0,9}\S{1,40} {0,9}\[[^\[\]\r\n]{1,2000}\][ ,]{0,9}(?=\S)")
_OWN_TIME = re.compile(rb"[\s\[]{0,9}(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:\d\d)?)(?![\d:])")
# A time within the text is a label only if other label text surrounds it.
_INNER_TIME = re.compile(rb"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:\d\d)?(?![\d:])")
_LABELS_BEFORE = re.compile(rb"(?:\[rank(?P<rank>\d{1,6})\]: ?|\[titan\] ){1,2}$")
_LEVEL_BEHIND = re.compile(rb" - \S{1,100} - [A-Z]{4,8} - ")
MAXIMUM_LABEL_BYTES = 32


class Line:
    """One physical line, which starts at byte `offset` of its log.

    `text` is the line without colours and newline. `body` is the index after the prefixes and after a progress bar behind them.
    `labels` are the positions in `text` of the task (srun), rank (torchrun) and time. The program's time takes precedence over
    kubectl's.
    """

    def __init__(self, raw: bytes, offset: int):
        self.offset = offset
        raw = raw.rstrip(b"\r\n")
        self._removed: list[tuple[int, int]] = []
        if b"\x1b" in raw:
            raw = self._without(CONTROL_SEQUENCE, raw)
        elif b"m" in raw and _LOST_ESCAPE.search(raw):
            raw = self._without(_COLOUR_WITHOUT_ESCAPE, raw)
        self.text = raw
        self.labels: list[Value] = []
        self.node: str | None = None
        prefix = self._take_prefix(0)
        bar = _BAR.match(raw, self.body) if b"%|" in raw else None
        if bar is not None:
            self._take_prefix(bar.end())
        printed_time = _OWN_TIME.match(raw, self.body)
        if printed_time is not None:
            self.labels.append((TIME, *printed_time.span("time")))
        if prefix["time"] is not None:
            self.labels.append((TIME if printed_time is None else None, *prefix.span("time")))

    def _take_prefix(self, begin: int) -> re.Match[bytes]:
        prefix = _PREFIX.match(self.text, begin)
        assert prefix is not None
        self.body = prefix.end()
        self.node = prefix["pod"].decode(errors="replace") if prefix["pod"] else self.node
        if prefix["task"] is not None:
            self.labels.append((TASK, *prefix.span("task")))
        if prefix["rank"] is not None and prefix["role"] == b"rank":
            self.labels.append((RANK, *prefix.span("rank")))
        return prefix

    def relabel(self, event: int) -> None:
        """Take time and rank from the labels nearest before the event at `event` in the physical line."""
        for time in _INNER_TIME.finditer(self.text, self.body + 1):
            begin, end = time.span()
            if self.raw_index(begin) >= event:
                break
            before = _LABELS_BEFORE.search(self.text[:begin], max(0, begin - MAXIMUM_LABEL_BYTES))
            is_bracketed = self.text[begin - 1 : begin] == b"[" and self.text[end : end + 1] == b"]"
            if before is None and not is_bracketed and _LEVEL_BEHIND.match(self.text, end) is None:
                continue
            fields = {TIME, RANK} if before is not None and before["rank"] is not None else {TIME}
            self.labels = [(None if field in fields else field, first, last) for field, first, last in self.labels]
            self.labels.append((TIME, begin, end))
            if before is not None and RANK in fields:
                self.labels.append((RANK, *before.span("rank")))

    def _without(self, pattern: re.Pattern[bytes], raw: bytes) -> bytes:
        removed = 0
        for match in pattern.finditer(raw):
            removed += match.end() - match.start()
            self._removed.append((match.end() - removed, removed))
        return pattern.sub(b"", raw)

    def raw_index(self, index: int) -> int:
        """Convert an index in `text` to the index in the physical line."""
        entry = bisect.bisect_right(self._removed, (index, sys.maxsize)) - 1
        return index + self._removed[entry][1] if entry >= 0 else index

    def decode(self, begin: int = 0, end: int | None = None) -> str:
        return self.text[begin:end].decode(errors="replace")

    @property
    def time(self) -> str | None:
        return next((read_time(self.text[begin:end]) for field, begin, end in self.labels if field is TIME), None)
