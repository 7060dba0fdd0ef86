"""Several processes that say the same: one event instead of one for each rank.

With `srun --label` or torchrun's `--tee`, every rank may print the step line, a little earlier or later than the others; a
progress bar draws one step many times. A line is new when its own process has not said the same step since another one did: so a
step that is done again after a restart counts again.
"""

import bisect
import json
from collections import OrderedDict
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import orjson

from lt_monitor.events.records import Record
from lt_monitor.logs.log_parser import ParsedBlock, attributed
from lt_monitor.logs.step_rows import UNNAMED, StepBlock, Stream

REMEMBERED_PER_STREAM = 8
_OTHER_KINDS = frozenset({"eval", "checkpoint", "load"})

Key = tuple[Any, ...]


class Deduplicator:
    """Which records of one log are news. `state` continues another deduplicator's work, as `to_record` gave it."""

    def __init__(self, state: Record | None = None):
        state = state or {}
        # What was said last by each stream, and what by which streams, oldest first.
        self._latest: dict[Stream, Key] = {tuple(stream): tuple(words) for stream, words in state.get("latest", [])}
        self._said: OrderedDict[Key, set[Stream]] = OrderedDict(
            (tuple(words), {tuple(stream) for stream in streams}) for words, streams in state.get("said", [])
        )

    def to_record(self) -> Record:
        said = [[list(words), sorted(map(list, streams), key=str)] for words, streams in self._said.items()]
        return {"latest": [[list(stream), list(words)] for stream, words in self._latest.items()], "said": said}

    def new_records(self, records: Sequence[Record]) -> list[Record]:
        """The records without those that repeat another one."""
        return [record for record in records if self.is_new(record)]

    def new_lines(self, block: ParsedBlock, path: str, run: str) -> list[bytes]:
        """What is new in a block of the log `path`, as lines of JSON in the order of the log."""
        steps = block.step_block()
        if steps is None:
            return encoded(self.new_records(block.records(path, run)))
        lines = steps.lines(path, run)
        new: list[bytes] = []
        begin = 0
        for order, item in block.ordered_items():
            end = bisect.bisect_left(steps.offsets, order)
            new += [lines[place] for place in self._new_steps(steps, begin, end, run)]
            new += encoded(self.new_records([attributed(item, path, run)]))
            begin = end
        new += [lines[place] for place in self._new_steps(steps, begin, len(lines), run)]
        return new

    def _new_steps(self, block: StepBlock, begin: int, end: int, run: str) -> list[int]:
        """Which of the steps `begin` to before `end` are news."""
        if begin == end:
            return []
        numbers, losses = block.numbers[begin:end], block.losses[begin:end]
        if len(block.streams) == 1 and self._is_alone(block.streams[0]):
            # Only a step that is told twice in a row, as by a progress bar, is no news.
            stream = block.streams[0]
            ahead = [self._latest.get(stream), *zip(repeat(run), numbers, losses, strict=False)]
            self._latest[stream] = ahead[-1] or ()
            if stream != UNNAMED:
                for number in _last_distinct(numbers, 2 * REMEMBERED_PER_STREAM):
                    self._is_new_for(stream, (run, number))
            return [begin + place for place, words in enumerate(ahead[1:]) if words != ahead[place]]
        stream_of = [0] * len(numbers) if block.stream_of is None else block.stream_of[begin:end].tolist()
        streams = [block.streams[place] for place in stream_of]
        told = zip(streams, numbers, losses, strict=True)
        return [begin + place for place, words in enumerate(told) if self._is_new_step(run, *words)]

    def _is_alone(self, stream: Stream) -> bool:
        """Whether all that is remembered was told by this one process."""
        return set().union(self._latest, *self._said.values()) <= {stream}

    def _is_new_step(self, run: str, stream: Stream, step: float, loss: float | None) -> bool:
        words = run, step
        exactly = run, step, loss
        if self._latest.get(stream) == exactly:
            return False
        self._latest[stream] = exactly
        return stream == UNNAMED or self._is_new_for(stream, words)

    def is_new(self, record: Record) -> bool:
        kind = record["kind"]
        stream: Stream = record.get("task"), record.get("rank"), record.get("node")
        words: Key
        if kind == "step":
            return self._is_new_step(record["run"], stream, record["step"], record.get("loss"))
        if kind in _OTHER_KINDS:
            words = record["run"], kind, record.get("step"), record.get("split"), record.get("begun"), record.get("path")
            return stream == UNNAMED or self._is_new_for(stream, words)
        if kind == "start":
            self._latest.clear()
        return True

    def _is_new_for(self, stream: Stream, words: Key) -> bool:
        streams = self._said.get(words)
        if streams is None:
            self._said[words] = {stream}
            if len(self._said) > REMEMBERED_PER_STREAM * (len(self._latest) + 1):
                self._said.popitem(last=False)
            return True
        self._said.move_to_end(words)
        if stream in streams:
            self._said[words] = {stream}
            return True
        streams.add(stream)
        return False


def _last_distinct(numbers: Sequence[float], count: int) -> list[float]:
    """The last numbers that differ, in the order in which each came last."""
    found: dict[float, None] = {}
    for number in reversed(numbers):
        found.setdefault(number)
        if len(found) == count:
            break
    return list(reversed(found))


def encoded(records: Sequence[Record]) -> list[bytes]:
    """Each record as a line of JSON without its end."""
    try:
        return list(map(orjson.dumps, records))
    except TypeError:
        # Halves of characters and huge integers, which only an event record of another program can hold.
        return [json.dumps(record, separators=(",", ":"), allow_nan=False).encode() for record in records]
