"""The phases of a rank from the start of lt-train to its first step, with their seconds.

Laps follow each other and add up to the whole; the work of threads is listed beside them. A rank that begins again in its
process (`lt_train.launch.control`) begins its clock again, too.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from lt_shared.contracts.recovery_notes import Started

# The process of lt-train and its start, for the ranks that it starts: of CLOCK_MONOTONIC, which all processes of a machine share.
VARIABLE = "LT_TRAIN_STARTED"


def announced() -> dict[str, str]:
    """The variable for the ranks that this process starts."""
    return {VARIABLE: f"{os.getpid()} {process_start()}"}


def _launched(otherwise: float) -> float:
    """When the parent started, if it has said so: the variable may come from further away, or from anyone."""
    process, _, seconds = os.environ.get(VARIABLE, "").partition(" ")
    return float(seconds) if process == str(os.getppid()) else otherwise


def process_start() -> float:
    """When this process started, to a hundredth of a second, on the clock of `time.monotonic`."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - max(0.0, age_seconds)


class StartClock:
    def __init__(self) -> None:
        self._begin(time.monotonic())

    def begin(self) -> None:
        """With lt-train, which has started this process, or else with this process."""
        started = process_start()
        launched = _launched(started)
        self._begin(launched)
        if launched < started:
            self._phases["launcher"] = started - launched
            self._last = started

    def begin_again(self) -> None:
        """This process makes another attempt."""
        self._begin(time.monotonic())

    def _begin(self, moment: float) -> None:
        self._began = self._last = moment
        self._phases: dict[str, float] = {}
        self._beside: dict[str, float] = {}
        self._is_over = False

    def lap(self, phase: str) -> None:
        """End a lap: the time since the last lap belongs to `phase`."""
        now = time.monotonic()
        self._phases[phase] = self._phases.get(phase, 0.0) + now - self._last
        self._last = now

    @contextlib.contextmanager
    def beside(self, name: str) -> Iterator[None]:
        """What happens within it, in a thread or as a part of a phase, is told beside the phases."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._beside[name] = self._beside.get(name, 0.0) + time.monotonic() - begin

    def end(self, step: int) -> Started | None:
        """`step` is done; None unless it is the first one since the start."""
        if self._is_over:
            return None
        self.lap("first step")
        self._is_over = True
        return Started(self._last - self._began, step, dict(self._phases), dict(self._beside))


clock = StartClock()
