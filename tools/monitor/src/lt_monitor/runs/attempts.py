"""Runs and their attempts: the events in order, and the steps that were repeated. `run_loader.read` builds them from logs.

A job that dies after its last checkpoint repeats steps when it resumes. An attempt counts each step once. If several attempts did
a step, the run counts the latest attempt. If a later attempt resumed from step N, the earlier attempts' steps after N are lost.
"""

import dataclasses
import functools
from collections.abc import Callable

from lt_monitor.events.records import Record
from lt_monitor.events.steps import Steps


@dataclasses.dataclass
class Attempt:
    """One attempt: the trainer from its start to its end. `number` counts from 1.

    `events` has all records except steps, in the log's order. `closing` has the events after the last step.

    `resumed_at` is the step of the checkpoint it resumed from: 0 from scratch, None when the log does not show it. `lost_steps`
    counts steps that a later attempt repeated. `begin_time` and `end_time` are the first and the last time in
    its lines, seconds since 1970, None when the lines have no times.
    """

    number: int
    resumed_at: int | None = None
    steps: Steps = dataclasses.field(default_factory=Steps.empty)
    events: list[Record] = dataclasses.field(default_factory=list)
    lost_steps: int = 0
    begin_time: float | None = None
    end_time: float | None = None
    files: list[str] = dataclasses.field(default_factory=list)
    closing: list[Record] = dataclasses.field(default_factory=list)

    def of_kind(self, kind: str) -> list[Record]:
        """Its records of a kind other than step, in the order of the log."""
        return [event for event in self.events if event["kind"] == kind]

    @property
    def arguments(self) -> Record:
        """The arguments that the attempt printed. If two dumps differ, the later one counts."""
        merged: Record = {}
        for event in self.of_kind("start"):
            merged |= event["arguments"]
        return merged

    @property
    def end(self) -> Record | None:
        """The record of its orderly end; None when it was killed, crashed, or still runs."""
        return next(iter(reversed(self.of_kind("end"))), None)

    @property
    def first_step(self) -> int | None:
        return int(self.steps.numbers[0]) if len(self.steps) else None

    @property
    def last_step(self) -> int | None:
        return int(self.steps.numbers[-1]) if len(self.steps) else None


@dataclasses.dataclass
class Run:
    """One run: its attempts in order, and the logs that they came from.

    `scores` has the benchmark scores of the run's checkpoints, by step. `main_scores` names one score for each benchmark.
    """

    name: str
    attempts: list[Attempt]
    files: list[str]
    scores: Steps = dataclasses.field(default_factory=Steps.empty)
    main_scores: tuple[str, ...] = ()

    @property
    def arguments(self) -> Record:
        merged: Record = {}
        for attempt in self.attempts:
            merged |= attempt.arguments
        return merged

    @functools.cached_property
    def steps(self) -> Steps:
        """Each step once, of the latest attempt that did it; none that a later attempt went back before and has not reached."""
        counted_steps = []
        for attempt, bound in self._kept():
            is_whole = attempt.last_step is None or attempt.last_step <= bound
            counted_steps.append(attempt.steps if is_whole else attempt.steps[attempt.steps.numbers <= bound])
        return Steps.join(counted_steps)

    @property
    def evaluations(self) -> list[Record]:
        """Losses on the validation split that count, by step."""
        return self.evaluations_on("validation")

    def evaluations_on(self, split: str) -> list[Record]:
        """Losses on a split (validation, test) that count, by step."""
        return self._by_step("eval", lambda event: event.get("split", "validation") == split)

    @property
    def validation_sets(self) -> dict[str, list[Record]]:
        """Return the evaluations by validation set, in the order of steps. The first set also counts as the validation split."""
        of_set: dict[str, str] = {}
        for event in self.of_kind("eval"):
            split = event.get("split", "validation")
            if event.get("set") and split.startswith("validation"):
                of_set.setdefault(str(event["set"]), split)
        return {name: self.evaluations_on(split) for name, split in of_set.items()}

    @property
    def checkpoints(self) -> list[Record]:
        """Checkpoints that were saved completely and not made obsolete by an earlier restart, by step."""
        return self._by_step("checkpoint", lambda event: not event.get("begun") and event.get("step") is not None)

    @property
    def restarts(self) -> int:
        """How often the run was restarted or resumed; a first attempt from scratch does not count."""
        return len(self.attempts) - 1 + bool(self.attempts and self.attempts[0].resumed_at)

    @property
    def lost_steps(self) -> int:
        return sum(attempt.lost_steps for attempt in self.attempts)

    @property
    def updated(self) -> float | None:
        """The last time in its lines, seconds since 1970."""
        return max((attempt.end_time for attempt in self.attempts if attempt.end_time is not None), default=None)

    def of_kind(self, kind: str) -> list[Record]:
        return [event for attempt in self.attempts for event in attempt.of_kind(kind)]

    def _kept(self) -> list[tuple[Attempt, float]]:
        """Pairs of an attempt and its last step that counts."""
        bound = float("inf")
        attempts_and_bounds = []
        for attempt in reversed(self.attempts):
            attempts_and_bounds.append((attempt, bound))
            if attempt.resumed_at is not None:
                bound = min(bound, attempt.resumed_at)
        return attempts_and_bounds[::-1]

    def _by_step(self, kind: str, counts: Callable[[Record], bool]) -> list[Record]:
        by_step: dict[int, Record] = {}
        for attempt, bound in self._kept():
            for event in attempt.of_kind(kind):
                if counts(event) and event["step"] <= bound:
                    by_step[event["step"]] = {**by_step.get(event["step"], {}), **event}
        return [event for _, event in sorted(by_step.items())]
