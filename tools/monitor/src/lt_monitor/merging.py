"""Several processes that say the same: one event instead of one for each rank.

With `srun --label` or torchrun's `--tee`, every rank may print the step line, a little earlier or later than the others; a
progress bar draws one step many times. A line is new when its own process has not said the same step since another one did: so a
step that is done again after a restart counts again.
"""

from collections import OrderedDict
from typing import Any

from lt_monitor.events import Record

REMEMBERED_PER_STREAM = 8
_KINDS = frozenset({"step", "eval", "checkpoint", "load"})

Stream = tuple[Any, Any]


class Merger:
    """Which records of one log are news. `state` continues another merger's work, as `to_record` gave it."""

    def __init__(self, state: Record | None = None):
        state = state or {}
        self._said = OrderedDict((tuple(key), {tuple(stream) for stream in streams}) for key, streams in state.get("said", []))
        self._latest: dict[Stream, tuple[Any, ...]] = {tuple(stream): tuple(key) for stream, key in state.get("latest", [])}

    def to_record(self) -> Record:
        said = [[list(key), sorted(streams, key=str)] for key, streams in self._said.items()]
        return {"said": said, "latest": [[list(stream), list(key)] for stream, key in self._latest.items()]}

    def is_news(self, record: Record) -> bool:
        kind = record["kind"]
        if kind not in _KINDS:
            if kind == "start":
                self._latest.clear()
            return True
        stream = record.get("task"), record.get("rank")
        key = record["run"], kind, record.get("step"), record.get("split"), record.get("begun"), record.get("path")
        if kind == "step":
            latest = *key, record.get("loss")
            if self._latest.get(stream) == latest:
                return False
            self._latest[stream] = latest
        streams = self._said.get(key)
        if streams is not None and stream not in streams:
            streams.add(stream)
            return False
        self._said[key] = {stream}
        self._said.move_to_end(key)
        while len(self._said) > REMEMBERED_PER_STREAM * len(self._latest or (None,)):
            self._said.popitem(last=False)
        return True
