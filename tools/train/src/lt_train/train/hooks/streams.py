"""Wait for a shard of a stream on all ranks together.

Without this hook, a rank that has its samples would wait for the other ranks inside a collective, until the collective times out.
In each step the ranks agree on whether all have the data of the next step. If not, they ask each other repeatedly whether all
have it, and whether a rank has a reason to end. So a waiting run obeys signals and time limits, saves, and keeps its watchdog
content.
"""

import datetime
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lt_shared.console import TryAgain
from lt_shared.contracts import run_log
from lt_train.data.arrival import Arrival
from lt_train.process import agreement
from lt_train.process.signals import Limits, Reason
from lt_train.train.hooks.hook import Hook

if TYPE_CHECKING:
    import torch

    from lt_train.checkpoint.training_state import TrainingState
    from lt_train.config.settings.batches import Batches
    from lt_train.data.arrivals import Arrivals
    from lt_train.metrics.log import Log
    from lt_train.metrics.step_timer import Clock
    from lt_train.process.watchdog import Watchdog

POLL_SECONDS = 0.5
# The first warning comes when a shard is later than usual; later warnings are rare.
FIRST_WARNING_SECONDS, WARNING_SECONDS = 10.0, 600.0


class Streams(Hook):
    def __init__(
        self,
        arrivals: "Arrivals",
        batches: "Batches",
        limits: Limits,
        state: "TrainingState",
        log: "Log",
        watchdog: "Watchdog",
        clock: "Clock",
        device: "torch.device",
    ):
        self.arrivals = arrivals
        self.batches = batches
        self.limits = limits
        self.state = state
        self.log = log
        self.watchdog = watchdog
        self.clock = clock
        self.device = device
        self._arrival: int = Arrival.WAITING

    def before_step(self) -> Reason:
        """Wait for the samples of the step. Return a reason other than NONE if the run ends instead."""
        end = self._end_of_step(self.state.consumed_samples)
        if self._arrival != Arrival.READY:
            with self.clock.waiting():
                reason = self._wait(self.state.iteration, end)
            if reason:
                return reason
        for line in self.arrivals.new_epochs(end):
            self.log.line(line)
        return Reason.NONE

    def answers(self) -> Sequence[int]:
        """Return the arrival of the next step's samples on this rank."""
        return [self.arrivals.arrival(self._end_of_step(self._end_of_step(self.state.consumed_samples)))]

    def agreed(self, largest: Sequence[int]) -> None:
        (self._arrival,) = largest

    def at_end(self, stop: Reason) -> None:
        """Raise the error that ended a stream."""
        if stop == Reason.NO_DATA and self.arrivals.failure:
            hint = "the same pipe continues both: what is trained and what is tokenized is kept"
            raise self.arrivals.problem or TryAgain(self.arrivals.failure, hint)

    def _end_of_step(self, consumed_samples: int) -> int:
        return consumed_samples + self.batches.size_at(consumed_samples)

    def _wait(self, iteration: int, end: int) -> Reason:
        """Wait until all ranks have the samples before `end`, or until one has a reason to end after `iteration` steps."""
        started = time.monotonic()
        warning = started + FIRST_WARNING_SECONDS
        while True:
            arrival, reason = agreement.start_maximum([self.arrivals.arrival(end), self.limits.reached(iteration)], self.device)()
            if reason or arrival == Arrival.READY:
                break
            if arrival == Arrival.FAILED:
                reason = Reason.NO_DATA
                break
            self.watchdog.beat(iteration)
            now = time.monotonic()
            if now >= warning:
                awaited = self.arrivals.awaited(end) or "a stream, on another rank"
                since = now - started
                self.log.line(run_log.format_waiting_for_data(iteration, since, awaited, datetime.datetime.now()))
                warning = now + WARNING_SECONDS
            time.sleep(POLL_SECONDS)
        waited_seconds = time.monotonic() - started
        if waited_seconds >= FIRST_WARNING_SECONDS:
            self.log.line(f"waited {waited_seconds:.0f} s for data after iteration {iteration}")
        return Reason(reason)
