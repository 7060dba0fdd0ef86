"""Measure the phases of a rank from the start of lt-train to the rank's first step, in seconds.

Laps follow each other and add up to the total. Work in threads is listed beside the laps. If a rank begins again in the same
process (`lt_train.launch.control`), its clock begins again, too.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from lt_shared.contracts.recovery_notes import Started, Starting

# The process id and the start of lt-train, for its ranks. The start is by CLOCK_MONOTONIC, which a machine's processes share.
VARIABLE = "LT_TRAIN_STARTED"


def start_variable() -> dict[str, str]:
    """Return the variable that tells this process's start to the ranks that it starts."""
    return {VARIABLE: f"{os.getpid()} {process_start()}"}


def _parent_start(otherwise: float) -> float:
    """Return the start of the parent process. Return `otherwise` if another process has set the variable."""
    process, _, seconds = os.environ.get(VARIABLE, "").partition(" ")
    return float(seconds) if process == str(os.getppid()) else otherwise


def process_start() -> float:
    """Return the start of this process by the clock of `time.monotonic`, to a hundredth of a second."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - max(0.0, age_seconds)


class StartClock:
    def __init__(self) -> None:
        self._begin(time.monotonic())

    def begin(self) -> None:
        """Begin at the start of lt-train, if lt-train has started this process, or else at the start of this process."""
        started = process_start()
        launched = _parent_start(started)
        self._begin(launched)
        if launched < started:
            self._phases["launcher"] = started - launched
            self._last = started

    def begin_again(self) -> None:
        """Begin now, because this process makes another attempt."""
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
        """Measure the block, which runs in a thread or is a part of a phase, separately from the phases."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._beside[name] = self._beside.get(name, 0.0) + time.monotonic() - begin

    def starting(self, phase: str) -> Starting:
        """Return the note that `phase` begins now."""
        return Starting(time.monotonic() - self._began, phase)

    def end(self, step: int) -> Started | None:
        """Return the phases after `step`, if it is the first step since the start, else None."""
        if self._is_over:
            return None
        self.lap("first step")
        self._is_over = True
        return Started(self._last - self._began, step, dict(self._phases), dict(self._beside))


clock = StartClock()
