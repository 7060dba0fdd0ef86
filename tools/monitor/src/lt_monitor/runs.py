"""Runs put together from events: each step counts once, whatever was lost, repeated or logged in several files.

A job that dies after its last checkpoint repeats steps when it is resumed. What the first attempt logged after that checkpoint is
dropped and counted as lost; the later attempt wins. An attempt begins where a checkpoint is loaded or where steps go back.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from lt_monitor import log_files
from lt_monitor.events import Record
from lt_shared.console import BadData, warn


@dataclasses.dataclass
class Run:
    """One run. `steps` and `evaluations` (validation split) are by step, in order; `resumed_at` has the step of each restart.

    `lost_steps` counts steps that were logged and then done again. `files` are the logs that the events came from, `last_times`
    the last time in each of them as ISO 8601 text.
    """

    name: str
    steps: dict[int, Record] = dataclasses.field(default_factory=dict)
    evaluations: dict[int, Record] = dataclasses.field(default_factory=dict)
    checkpoints: dict[int, Record] = dataclasses.field(default_factory=dict)
    arguments: Record = dataclasses.field(default_factory=dict)
    resumed_at: list[int] = dataclasses.field(default_factory=list)
    lost_steps: int = 0
    last_times: list[str] = dataclasses.field(default_factory=list)
    files: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Log:
    """The events of one run in one log, taken in the order in which they were written."""

    run: Run
    last_step: int | None = None
    restarted: bool = False

    def take(self, event: Record) -> None:
        kind = event["kind"]
        if kind == "start":
            self.run.arguments = event["arguments"]
            self.restarted = bool(self.run.steps)
        elif kind == "load":
            self._resume(event["step"])
        elif kind == "checkpoint":
            self.run.checkpoints.pop(event["step"], None)
            self.run.checkpoints[event["step"]] = event
        elif kind == "eval" and event.get("split", "validation") == "validation":
            self.run.evaluations[event["step"]] = event
        elif kind == "step":
            self._step(event)
        if "time" in event:
            self.run.last_times = [event["time"]]

    def _step(self, event: Record) -> None:
        step = event["step"]
        if self.restarted or (self.last_step is not None and step < self.last_step):
            self._resume(step - 1)
        self.last_step = step
        self.run.steps[step] = event

    def _resume(self, step: int) -> None:
        run = self.run
        repeated = self.last_step is None and run.resumed_at[-1:] == [step]
        if (run.steps or step > 0) and not repeated:
            run.resumed_at.append(step)
        if self.last_step is not None:
            run.lost_steps += max(0, self.last_step - step)
        for by_step in (run.steps, run.evaluations, run.checkpoints):
            for lost in [key for key in by_step if key > step]:
                del by_step[lost]
        self.last_step = None
        self.restarted = False


def assemble(events: Iterable[Record]) -> list[Run]:
    """The runs among `events`, in order of appearance. A run in several files is their union: the later file wins a step."""
    logs: dict[tuple[str, str], _Log] = {}
    for event in events:
        source = (event["run"], event["src"]["file"])
        if source not in logs:
            logs[source] = _Log(Run(event["run"], files=[event["src"]["file"]]))
        logs[source].take(event)
    runs: dict[str, Run] = {}
    for log in logs.values():
        name = log.run.name
        runs[name] = _union(runs[name], log.run) if name in runs else log.run
    for run in runs.values():
        run.steps = dict(sorted(run.steps.items()))
        run.evaluations = dict(sorted(run.evaluations.items()))
    return list(runs.values())


def _union(one: Run, other: Run) -> Run:
    """Two logs of one run. They may tell of the same restarts, so the longer list counts."""
    steps = {step: {**one.steps.get(step, {}), **event} for step, event in other.steps.items()}
    return Run(
        name=one.name,
        steps=one.steps | steps,
        evaluations=one.evaluations | other.evaluations,
        checkpoints=one.checkpoints | other.checkpoints,
        arguments=one.arguments | other.arguments,
        resumed_at=max(one.resumed_at, other.resumed_at, key=len),
        lost_steps=max(one.lost_steps, other.lost_steps),
        last_times=one.last_times + other.last_times,
        files=one.files + other.files,
    )


def read(patterns: Sequence[str]) -> list[Run]:
    """The runs in the logs that the arguments mean, only those that trained.

    Raises: NoInput when a log is missing, BadData when no log has a step. Warns about a log without events beside others.
    """
    paths = log_files.expand(patterns)
    events: list[Record] = []
    for path in paths:
        before = len(events)
        for block in log_files.event_blocks(path):
            events.extend(block)
        if len(events) == before and len(paths) > 1:
            warn(f"{path}: no training events")
    runs = [run for run in assemble(events) if run.steps]
    if not runs:
        raise BadData(
            f"{paths[0]}: no training steps" if len(paths) == 1 else f"no training steps in {len(paths)} logs",
            "expected logs of lt-train or Megatron-LM, with lines like ' iteration  100/ 1000 | ... | lm loss: 2.1E+00 |'",
        )
    return runs
