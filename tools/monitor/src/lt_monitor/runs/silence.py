"""Whether a run still writes: the time since its last line, measured by the usual time between two lines."""

import dataclasses
import os

import numpy as np

from lt_monitor.runs import speed, starting
from lt_monitor.runs.attempts import Run

# Both have to be exceeded.
MINIMUM_SECONDS = 300
STEP_FACTOR = 10
RECENT_LINES = 50


@dataclasses.dataclass(frozen=True)
class Silence:
    """`updated`: when the run last wrote, seconds since 1970, None where nothing tells. `limit_seconds`: how long it may not."""

    updated: float | None
    limit_seconds: float

    @classmethod
    def of(cls, run: Run) -> "Silence":
        """By the times of the last lines, else by the steps' own times. Without any times, the files tell when they changed."""
        steps = run.steps[-RECENT_LINES:]
        usual = np.diff(steps.times[np.isfinite(steps.times)])
        if not len(usual):
            usual = speed.step_seconds(steps)
        finite = usual[np.isfinite(usual)]
        minimum = MINIMUM_SECONDS if len(run.attempts[-1].steps) else starting.LIMIT_SECONDS
        limit = max(minimum, STEP_FACTOR * float(np.median(finite)) if len(finite) else 0.0)
        updated = run.updated
        if updated is None:
            updated = max((os.path.getmtime(file) for file in run.files if os.path.isfile(file)), default=None)
        return cls(updated, limit)

    def seconds(self, now: float) -> float | None:
        """How long it has lasted at the time `now`."""
        return None if self.updated is None else max(0.0, now - self.updated)

    def is_too_long(self, now: float) -> bool:
        seconds = self.seconds(now)
        return seconds is not None and seconds > self.limit_seconds
