"""The attempts of a run in a log.

`attempt_boundary` decides where an attempt begins. Several processes may print the same lines into one log. A stream is one such
process (a task of srun, a rank of torchrun, a pod). Events are in order within a stream, but not always across streams.
"""

import math

import numpy as np

from lt_monitor.events.records import Record
from lt_monitor.events.steps import Steps, epoch_seconds
from lt_monitor.logs.fast.step_rows import StepBlock, Stream
from lt_monitor.runs.attempt_boundary import begins_attempt, start_key
from lt_monitor.runs.attempts import Attempt


class LogAttempts:
    """Collects the attempts of a run in a log. Takes the events in the order of the log."""

    def __init__(self, file: str):
        self._file = file
        self._open: list[_OpenAttempt] = [_OpenAttempt()]

    def take(self, event: Record) -> None:
        stream: Stream = event.get("task"), event.get("rank"), event.get("node")
        current = self._open[-1]
        if begins_attempt(event, stream, current.last_steps, current.started):
            self._open.append(_OpenAttempt())
        if event["kind"] == "step":
            self._open[-1].take_step(event, stream)
        else:
            self._open[-1].take(event, stream)

    def take_steps(self, block: StepBlock, begin: int, end: int) -> None:
        """Steps `begin` to before `end` of a block, one after the other as `take` would, but whole stretches at a time."""
        streams = block.streams
        numbers = block.steps.numbers
        if len(streams) == 1:
            goes_back = np.flatnonzero(numbers[begin + 1 : end] < numbers[begin : end - 1]) + begin + 1
            if numbers[begin] < self._open[-1].last_steps.get(streams[0], 0):
                goes_back = np.concatenate(([begin], goes_back))
            for stop in goes_back.tolist():
                if stop > begin:
                    self._open[-1].take_steps(block.steps[begin:stop], {streams[0]: int(numbers[stop - 1])})
                self._open.append(_OpenAttempt())
                begin = stop
            self._open[-1].take_steps(block.steps[begin:end], {streams[0]: int(numbers[end - 1])})
            return
        stream_of = block.stream_of
        assert stream_of is not None
        for index in range(begin, end):
            stream = streams[int(stream_of[index])]
            if numbers[index] < self._open[-1].last_steps.get(stream, 0):
                self._open[-1].take_steps(block.steps[begin:index], {})
                self._open.append(_OpenAttempt())
                begin = index
            self._open[-1].last_steps[stream] = int(numbers[index])
        self._open[-1].take_steps(block.steps[begin:end], {})

    def attempts(self) -> list[Attempt]:
        return [attempt.finished(self._file) for attempt in self._open if attempt.events or attempt.last_steps]


class _OpenAttempt:
    """An attempt while its log is read."""

    def __init__(self) -> None:
        self.events: list[Record] = []
        self.last_steps: dict[Stream, int] = {}
        self._records: list[Record] = []
        self._parts: list[Steps] = []
        self._extras: list[Record] = []
        self.started: set[str] = set()
        self._first_stream: dict[tuple[object, ...], Stream] = {}
        self._begin_time, self._end_time = math.inf, -math.inf
        self._events_before_last_step = 0

    def take(self, event: Record, stream: Stream) -> None:
        self._note_time(epoch_seconds(event.get("time")))
        if event["kind"] in ("eval", "checkpoint", "load") and not self._is_new(event, stream):
            return
        if event["kind"] == "start":
            self.started.add(start_key(event, stream))
        elif event["kind"] == "note" and event["note"] == "throughput":
            self._extras.append({"step": None, **event.get("fields", {})})
        self.events.append(event)

    def _is_new(self, event: Record, stream: Stream) -> bool:
        """False for an event that another process printed already."""
        identity = tuple(event.get(field) for field in ("kind", "step", "split", "path", "begun", "seconds"))
        return self._first_stream.setdefault(identity, stream) == stream

    def take_step(self, event: Record, stream: Stream) -> None:
        self._events_before_last_step = len(self.events)
        self.last_steps[stream] = event["step"]
        self._belongs_to(event["step"])
        self._records.append(event)
        self._note_time(epoch_seconds(event.get("time")))

    def take_steps(self, steps: Steps, last_steps: dict[Stream, int]) -> None:
        if not len(steps):
            return
        self._events_before_last_step = len(self.events)
        self.last_steps |= last_steps
        self._belongs_to(int(steps.numbers[0]))
        self._put_records_aside()
        self._parts.append(steps)
        times = steps.times[np.isfinite(steps.times)]
        if len(times):
            self._note_time(float(times.min()))
            self._note_time(float(times.max()))

    def _belongs_to(self, step: int) -> None:
        """Figures that were printed just before a step belong to it."""
        if self._extras and self._extras[-1]["step"] is None:
            self._extras[-1]["step"] = step

    def _put_records_aside(self) -> None:
        if self._records:
            self._parts.append(Steps.from_records(self._records))
            self._records = []

    def _note_time(self, seconds: float) -> None:
        if not math.isnan(seconds):
            self._begin_time, self._end_time = min(self._begin_time, seconds), max(self._end_time, seconds)

    def finished(self, file: str) -> Attempt:
        self._put_records_aside()
        extras = Steps.from_records([extra for extra in self._extras if extra["step"] is not None])
        has_times = self._begin_time <= self._end_time
        return Attempt(
            number=0,
            resumed_at=self._resumed_at(),
            steps=Steps.join([extras, *self._parts]),
            events=self.events,
            closing=self.events[self._events_before_last_step :],
            begin_time=self._begin_time if has_times else None,
            end_time=self._end_time if has_times else None,
            files=[file],
        )

    def _resumed_at(self) -> int | None:
        """Return the attempt's resume step, or None if the log does not show it."""
        for event in reversed(self.events):
            if event["kind"] == "load" and event.get("step") is not None:
                return int(event["step"])
            if event["kind"] == "start" and event.get("first_step"):
                return int(event["first_step"]) - 1
        return None
