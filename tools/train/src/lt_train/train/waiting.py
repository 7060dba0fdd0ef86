"""Waiting for a shard of a stream, all ranks together: those that have their samples would wait for the others in a collective.

The ranks ask each other once a second whether all have the data of the next step, and whether one has a reason to end: a run
that waits obeys signals and time limits, and saves. The watchdog knows that it is alive.
"""

import datetime
import time

import torch

from lt_shared import run_log
from lt_train.data.arrivals import Arrival, Arrivals
from lt_train.metrics.log import Log
from lt_train.runtime import agreement
from lt_train.runtime.signals import Limits, Reason
from lt_train.runtime.watchdog import Watchdog

POLL_SECONDS = 0.5
# The first warning comes when a shard is later than usual, the next ones seldom.
FIRST_WARNING_SECONDS, WARNING_SECONDS = 10.0, 600.0


class Waiting:
    """Waits before a step, as often as it must."""

    def __init__(self, arrivals: Arrivals, limits: Limits, log: Log, watchdog: Watchdog, where: torch.device):
        self._arrivals = arrivals
        self._limits = limits
        self._log = log
        self._watchdog = watchdog
        self._where = where

    def wait(self, iteration: int, end: int) -> Reason:
        """Until all ranks have the samples up to before `end`, or have a reason to end after `iteration` steps."""
        started = time.monotonic()
        warning = started + FIRST_WARNING_SECONDS
        while True:
            arrival, reason = agreement.asked([self._arrivals.of(end), self._limits.reached(iteration)], self._where)()
            if reason or arrival == Arrival.READY:
                break
            if arrival == Arrival.FAILED:
                reason = Reason.NO_DATA
                break
            self._watchdog.beat(iteration)
            now = time.monotonic()
            if now >= warning:
                awaited = self._arrivals.awaited(end) or "a stream, on another rank"
                since = now - started
                self._log.line(run_log.format_waiting_for_data(iteration, since, awaited, datetime.datetime.now()))
                warning = now + WARNING_SECONDS
            time.sleep(POLL_SECONDS)
        waited = time.monotonic() - started
        if waited >= FIRST_WARNING_SECONDS:
            self._log.line(f"waited {waited:.0f} s for data after iteration {iteration}")
        return Reason(reason)
