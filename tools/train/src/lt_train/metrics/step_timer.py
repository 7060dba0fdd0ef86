"""Measure the parts of a step's time: waiting for data, the step itself, the loop's own Python.

For the host, a step ends when it has the loss and the norm. On a GPU the optimizer still runs then (`lt_train.process.reading`).
If the loop's Python between two steps takes longer than the optimizer, the GPU idles. The loop's time is measured in every run
and shown by `lt-train bench`, so that it cannot grow unseen.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True)
class Lap:
    """The mean seconds of some steps: `step_seconds` for the whole step. The other fields are parts of that time."""

    steps: int
    step_seconds: float
    data_seconds: float
    loop_seconds: float


class Clock:
    """Time steps. Evaluations and saves are not part of any step."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start a lap: the next step begins now."""
        self._started = time.perf_counter()
        self._steps = 0
        self._in_steps = self._waiting = self._paused = 0.0

    def reading(self, batches: Iterator[Item]) -> Iterator[Item]:
        """Yield `batches`, and count how long the step waits for them."""
        while True:
            started = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._waiting += time.perf_counter() - started
            yield batch

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Time a step."""
        started = time.perf_counter()
        yield
        self._in_steps += time.perf_counter() - started
        self._steps += 1

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Time the wait for a step's data."""
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        self._waiting += seconds
        self._in_steps += seconds

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Time work that belongs to no step."""
        started = time.perf_counter()
        yield
        self._paused += time.perf_counter() - started

    def lap(self) -> Lap:
        """Return the means over the steps since the last lap, and start the next lap."""
        seconds = time.perf_counter() - self._started - self._paused
        steps = self._steps
        lap = Lap(steps, seconds / steps, self._waiting / steps, (seconds - self._in_steps) / steps)
        self.start()
        return lap
