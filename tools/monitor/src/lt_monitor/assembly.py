"""From events to runs and attempts.

An attempt begins where the trainer starts, where a checkpoint is loaded after steps, or where the steps of one process go back.
Several processes that print the same lines into one log, and several logs of one run, are merged.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from lt_monitor import log_files
from lt_monitor.attempts import Attempt, Run
from lt_monitor.events import Record
from lt_monitor.steps import Steps, epoch_seconds
from lt_shared.console import BadData, warn

SAME_ATTEMPT_TOLERANCE = 1e-3

Stream = tuple[object, object]


def assemble(events: Iterable[Record]) -> list[Run]:
    """The runs among `events`, in order of appearance; a run in several logs has the attempts of all of them."""
    logs: dict[tuple[str, str], _Log] = {}
    for event in events:
        source = (event["run"], event["src"]["file"])
        if source not in logs:
            logs[source] = _Log(source[1])
        logs[source].take(event)
    by_run: dict[str, list[list[Attempt]]] = {}
    for (name, _), log in logs.items():
        by_run.setdefault(name, []).append(log.attempts())
    return [_run(name, attempts) for name, attempts in by_run.items()]


def read(patterns: Sequence[str], need_steps: bool = True) -> list[Run]:
    """The runs in the logs that the arguments mean; with `need_steps` only those that trained.

    Raises: NoInput when a log is missing, BadData when no log has a step and one is needed. Warns about a log without events.
    """
    paths = log_files.expand(patterns)
    events: list[Record] = []
    for path in paths:
        before = len(events)
        for block in log_files.event_blocks(path):
            events.extend(block)
        if len(events) == before and len(paths) > 1:
            warn(f"{path}: no training events")
    runs = [run for run in assemble(events) if len(run.steps) or not need_steps]
    if need_steps and not runs:
        raise BadData(
            f"{paths[0]}: no training steps" if len(paths) == 1 else f"no training steps in {len(paths)} logs",
            "expected logs of a trainer, with lines like ' iteration  100/ 1000 | ... | lm loss: 2.1E+00 |'",
        )
    return runs


def join_by_checkpoints(runs: Sequence[Run]) -> list[Run]:
    """Make one run of those that save into the same directory: jobs that were submitted again and log into a new file each.

    The first one gives the name. Relative directories are left alone: the log does not tell what they are relative to.
    """
    joined: dict[str, Run] = {}
    for run in runs:
        directory = _checkpoint_directory(run)
        key = f"directory {directory}" if directory else f"run {run.name}"
        if key in joined:
            joined[key] = _run(joined[key].name, [joined[key].attempts, run.attempts])
        else:
            joined[key] = run
    return list(joined.values())


def _checkpoint_directory(run: Run) -> str | None:
    paths = [run.arguments.get("save"), *(event.get("path") for event in run.of_kind("checkpoint"))]
    return next((path for path in paths if isinstance(path, str) and (path.startswith("/") or "://" in path)), None)


class _Log:
    """The events of one run in one log, taken in the order in which they were written."""

    def __init__(self, file: str):
        self.file = file
        self.open: list[_Attempt] = [_Attempt()]

    def take(self, event: Record) -> None:
        kind = event["kind"]
        stream: Stream = (event.get("task"), event.get("rank"))
        if kind == "step":
            if event["step"] < self.open[-1].last_steps.get(stream, 0):
                self.open.append(_Attempt())
            self.open[-1].take_step(event, stream)
            return
        if (kind == "start" and self.open[-1].is_over(stream)) or (kind == "load" and self.open[-1].last_steps):
            self.open.append(_Attempt())
        self.open[-1].take(event, stream)

    def attempts(self) -> list[Attempt]:
        return [attempt.finished(self.file) for attempt in self.open if attempt.events or attempt.step_records]


class _Attempt:
    """An attempt while its log is read.

    A stream is one process: its own events are in order, those of several processes may not be.
    """

    def __init__(self) -> None:
        self.events: list[Record] = []
        self.step_records: list[Record] = []
        self.extras: list[Record] = []
        self.last_steps: dict[Stream, int] = {}
        self.started: set[Stream] = set()
        self.times: list[str] = []
        self.first_to_say: dict[tuple[object, ...], Stream] = {}

    def is_over(self, stream: Stream) -> bool:
        """Whether a start that this stream prints now is another attempt's: after steps, or the second one of the same stream."""
        return bool(self.last_steps) or stream in self.started

    def take(self, event: Record, stream: Stream) -> None:
        self._note_time(event)
        if event["kind"] in ("eval", "checkpoint", "load") and not self._is_news(event, stream):
            return
        if event["kind"] == "start" and event["arguments"]:
            self.started.add(stream)
        elif event["kind"] == "note" and event["note"] == "throughput":
            self.extras.append({"step": None, **event.get("fields", {})})
        self.events.append(event)

    def _is_news(self, event: Record, stream: Stream) -> bool:
        """False for what another process has told already."""
        said = tuple(event.get(field) for field in ("kind", "step", "split", "path", "begun", "seconds"))
        return self.first_to_say.setdefault(said, stream) == stream

    def take_step(self, event: Record, stream: Stream) -> None:
        step = event["step"]
        self.last_steps[stream] = step
        if self.extras and self.extras[-1]["step"] is None:
            self.extras[-1]["step"] = step
        self.step_records.append(event)
        self._note_time(event)

    def _note_time(self, event: Record) -> None:
        if "time" in event:
            self.times = [*self.times[:1], event["time"]]

    def finished(self, file: str) -> Attempt:
        extras = [extra for extra in self.extras if extra["step"] is not None]
        times = [seconds for text in self.times if (seconds := epoch_seconds(text)) == seconds]
        return Attempt(
            number=0,
            resumed_at=self._resumed_at(),
            steps=Steps.join([Steps.from_records(extras), Steps.from_records(self.step_records)]),
            events=self.events,
            begin_time=min(times, default=None),
            end_time=max(times, default=None),
            files=[file],
        )

    def _resumed_at(self) -> int | None:
        """What the log says about where it went on; None when it says nothing."""
        for event in reversed(self.events):
            if event["kind"] == "load" and event.get("step") is not None:
                return int(event["step"])
            if event["kind"] == "start" and event.get("first_step"):
                return int(event["first_step"]) - 1
        return None


def _run(name: str, logs: Sequence[list[Attempt]]) -> Run:
    attempts = list(logs[0])
    for other in logs[1:]:
        attempts = _merged(attempts, other)
    for index, attempt in enumerate(attempts):
        attempt.number = index + 1
        if attempt.resumed_at is None:
            attempt.resumed_at = _guessed_resume(attempt, attempts[:index])
    for index, attempt in enumerate(attempts):
        later = [other.resumed_at for other in attempts[index + 1 :] if other.resumed_at is not None]
        if attempt.last_step is not None and later:
            kept = max(min(later), attempt.resumed_at or 0)
            attempt.lost_steps = max(0, attempt.last_step - kept)
    files = dict.fromkeys(file for attempt in attempts for file in attempt.files)
    return Run(name, attempts, list(files))


def _guessed_resume(attempt: Attempt, earlier: Sequence[Attempt]) -> int | None:
    """Where an attempt without a word about it went on: the last checkpoint before its first step, or one logged step earlier."""
    first = attempt.first_step
    if first is None:
        return None
    if not any(len(other.steps) for other in earlier):
        return 0 if first <= 1 else None
    numbers = attempt.steps.numbers
    interval = int(np.diff(numbers).min()) if len(numbers) > 1 else 1
    saved = [event["step"] for other in earlier for event in other.of_kind("checkpoint") if event.get("step") is not None]
    return max((step for step in saved if first - interval <= step < first), default=max(0, first - interval))


def _merged(attempts: list[Attempt], others: list[Attempt]) -> list[Attempt]:
    """The attempts of two logs of one run in order. Those that are the same one become one."""
    merged = list(attempts)
    place = 0
    for other in others:
        same = next((index for index in range(place, len(merged)) if _is_same(merged[index], other)), None)
        if same is not None:
            merged[same] = _union(merged[same], other)
            place = same + 1
            continue
        if other.begin_time is not None:
            place = sum(one.begin_time is None or one.begin_time <= other.begin_time for one in merged)
        else:
            place = len(merged)
        merged.insert(place, other)
        place += 1
    return merged


def _is_same(one: Attempt, other: Attempt) -> bool:
    """Whether two logs tell of the same attempt: their times overlap, or without times their steps do and the losses agree."""
    if one.resumed_at is not None and other.resumed_at is not None and one.resumed_at != other.resumed_at:
        return False
    if one.begin_time is not None and other.begin_time is not None:
        assert one.end_time is not None and other.end_time is not None
        return max(one.begin_time, other.begin_time) <= min(one.end_time, other.end_time)
    if not len(one.steps) or not len(other.steps):
        return one.resumed_at is not None and one.resumed_at == other.resumed_at
    common, of_one, of_other = np.intersect1d(one.steps.numbers, other.steps.numbers, return_indices=True)
    losses = one.steps.column("loss")[of_one], other.steps.column("loss")[of_other]
    known = np.isfinite(losses[0]) & np.isfinite(losses[1])
    agree = np.isclose(losses[0][known], losses[1][known], rtol=SAME_ATTEMPT_TOLERANCE)
    return len(common) > 0 and bool(agree.all())


def _union(one: Attempt, other: Attempt) -> Attempt:
    begins = [time for time in (one.begin_time, other.begin_time) if time is not None]
    ends = [time for time in (one.end_time, other.end_time) if time is not None]
    resumes = [step for step in (one.resumed_at, other.resumed_at) if step is not None]
    return Attempt(
        number=one.number,
        resumed_at=resumes[0] if resumes else None,
        steps=Steps.join([one.steps, other.steps]),
        events=one.events + other.events,
        begin_time=min(begins, default=None),
        end_time=max(ends, default=None),
        files=list(dict.fromkeys(one.files + other.files)),
    )
