"""Merge events that several ranks print into one event.

With `srun --label` or torchrun's `--tee`, every rank may print the step line, some earlier and some later. A progress bar prints
one step many times. An event is a repetition if a different process has printed it already. If the same process prints a step
again, the run repeated the step after a restart, and the event is new.
"""

import bisect
import json
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from lt_monitor.events.records import Record
from lt_monitor.logs.fast.step_rows import UNNAMED, StepBlock, Stream
from lt_monitor.logs.parsed_block import ParsedBlock, attributed

REMEMBERED_PER_STREAM = 8
# More than write to one log. A log with a new process name in every line must not fill the memory.
MAXIMUM_STREAMS = 1 << 16
_OTHER_KINDS = frozenset({"eval", "checkpoint", "load"})

Key = tuple[Any, ...]


class Deduplicator:
    """Drops the repeated records of a log. To continue an earlier deduplicator, pass its `to_record()` as `state`."""

    def __init__(self, state: Record | None = None):
        state = state or {}
        # The last event by stream, and by event the streams that printed it, oldest event first.
        self._latest: dict[Stream, Key] = {tuple(stream): tuple(key) for stream, key in state.get("latest", [])}
        self._streams_by_key: OrderedDict[Key, set[Stream]] = OrderedDict(
            (tuple(key), {tuple(stream) for stream in streams}) for key, streams in state.get("said", [])
        )

    def to_record(self) -> Record:
        streams_by_key = [[list(key), sorted(map(list, streams), key=str)] for key, streams in self._streams_by_key.items()]
        return {"latest": [[list(stream), list(key)] for stream, key in self._latest.items()], "said": streams_by_key}

    def new_records(self, records: Sequence[Record]) -> list[Record]:
        """Return the records that are no repetitions."""
        return [record for record in records if self.is_new(record)]

    def new_lines(self, block: ParsedBlock, path: str, run: str) -> list[bytes]:
        """Encode the new events in a block of the log `path` as lines of JSON, in the order of the log."""
        steps = block.step_block()
        if steps is None:
            return encoded(self.new_records(block.records(path, run)))
        lines = steps.lines(path, run)
        new: list[bytes] = []
        begin = 0
        for order, item in block.ordered_items():
            end = bisect.bisect_left(steps.offsets, order)
            new += self._new_step_lines(steps, lines, begin, end, run)
            new += encoded(self.new_records([attributed(item, path, run)]))
            begin = end
        new += self._new_step_lines(steps, lines, begin, len(lines), run)
        return new

    def _new_step_lines(self, block: StepBlock, lines: list[bytes], begin: int, end: int, run: str) -> list[bytes]:
        """Return the new lines from `begin` to before `end` among the steps' `lines`: nearly always all."""
        indexes = self._new_steps(block, begin, end, run)
        return lines[begin:end] if len(indexes) == end - begin else [lines[index] for index in indexes]

    def _new_steps(self, block: StepBlock, begin: int, end: int, run: str) -> list[int]:
        """Return the indexes of the new steps from `begin` to before `end`."""
        if begin == end:
            return []
        if len(block.streams) == 1 and self._is_alone(block.streams[0]):
            return self._new_steps_of_one(block, begin, end, run)
        numbers, losses = block.numbers[begin:end], block.losses[begin:end]
        stream_of = [0] * len(numbers) if block.stream_of is None else block.stream_of[begin:end].tolist()
        streams = [block.streams[index] for index in stream_of]
        keys = zip(streams, numbers, losses, strict=True)
        return [begin + index for index, key in enumerate(keys) if self._is_new_step(run, *key)]

    def _new_steps_of_one(self, block: StepBlock, begin: int, end: int, run: str) -> list[int]:
        """Return the indexes of the new steps of a single process: only a step printed twice in a row is a repetition."""
        (stream,) = block.streams
        numbers, losses = block.column("step")[begin:end], block.column("loss")[begin:end]
        losses = np.where(np.isfinite(losses), losses, np.inf)
        is_new = np.ones(end - begin, dtype=bool)
        is_new[1:] = (numbers[1:] != numbers[:-1]) | (losses[1:] != losses[:-1])
        is_new[0] = self._latest.get(stream) != _key(run, numbers[0], losses[0])
        self._latest[stream] = _key(run, numbers[-1], losses[-1])
        if stream != UNNAMED:
            for number, has_no_loss in _last_distinct(numbers, np.isinf(losses), 2 * REMEMBERED_PER_STREAM):
                self._is_new_for(stream, (run, number, has_no_loss))
        return (np.flatnonzero(is_new) + begin).tolist()

    def _is_alone(self, stream: Stream) -> bool:
        """Whether `stream` is the only process whose events are remembered."""
        return set().union(self._latest, *self._streams_by_key.values()) <= {stream}

    def _is_new_step(self, run: str, stream: Stream, step: float, loss: float | None) -> bool:
        # A step may have a second line without a loss: DeepSpeed's line follows Megatron's.
        key = run, step, loss is None
        exactly = run, step, loss
        if self._latest.get(stream) == exactly:
            return False
        self._latest[stream] = exactly
        if len(self._latest) > MAXIMUM_STREAMS:
            del self._latest[next(iter(self._latest))]
        return stream == UNNAMED or self._is_new_for(stream, key)

    def is_new(self, record: Record) -> bool:
        kind = record["kind"]
        stream: Stream = record.get("task"), record.get("rank"), record.get("node")
        key: Key
        if kind == "step":
            return self._is_new_step(record["run"], stream, record["step"], record.get("loss"))
        if kind in _OTHER_KINDS:
            key = record["run"], kind, record.get("step"), record.get("split"), record.get("begun"), record.get("path")
            return stream == UNNAMED or self._is_new_for(stream, key)
        if kind == "start":
            self._latest.clear()
        return True

    def _is_new_for(self, stream: Stream, key: Key) -> bool:
        streams = self._streams_by_key.get(key)
        if streams is None:
            self._streams_by_key[key] = {stream}
            if len(self._streams_by_key) > REMEMBERED_PER_STREAM * (len(self._latest) + 1):
                self._streams_by_key.popitem(last=False)
            return True
        self._streams_by_key.move_to_end(key)
        if stream in streams:
            self._streams_by_key[key] = {stream}
            return True
        streams.add(stream)
        return False


def _key(run: str, number: float, loss: float) -> Key:
    """Return what identifies a step. A `loss` that is not finite counts as none."""
    return run, float(number), float(loss) if math.isfinite(loss) else None


def _last_distinct(numbers: np.ndarray, without_loss: np.ndarray, count: int) -> list[tuple[float, bool]]:
    """Return the last `count` distinct pairs of a step's number and whether it has no loss, ordered by their last occurrence."""
    distinct: dict[tuple[float, bool], None] = {}
    for index in reversed(range(len(numbers))):
        distinct.setdefault((float(numbers[index]), bool(without_loss[index])))
        if len(distinct) == count:
            break
    return list(reversed(distinct))


def encoded(records: Sequence[Record]) -> list[bytes]:
    """Encode each record as a line of JSON without a newline."""
    try:
        return list(map(orjson.dumps, records))
    except TypeError:
        # orjson refuses lone surrogates and huge integers. Only event records written by foreign programs contain them.
        return [json.dumps(record, separators=(",", ":"), allow_nan=False).encode() for record in records]
