"""The clock tells the step, waiting for data, the loop's own time and pauses from one another."""

from collections.abc import Iterator

import pytest

from lt_train.metrics import step_timer
from lt_train.metrics.step_timer import Clock, Lap


class Time:
    """A time that passes only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    fake = Time()
    monkeypatch.setattr(step_timer, "time", fake)
    return fake


def slow_batches(time: Time) -> Iterator[int]:
    for number in range(6):
        time.passes(0.25)
        yield number


def test_parts_of_the_steps(time: Time) -> None:
    watch = Clock()
    batches = watch.reading(slow_batches(time))
    time.passes(50)
    watch.start()
    for number in range(2):
        with watch.step():
            assert next(batches) == number
            time.passes(2)
        time.passes(0.5)
        with watch.pause():
            time.passes(30)
    lap = watch.lap()
    assert lap == Lap(steps=2, step_seconds=2.75, data_seconds=0.25, loop_seconds=0.5)
    with watch.step():
        time.passes(1)
    assert watch.lap() == Lap(steps=1, step_seconds=1, data_seconds=0, loop_seconds=0)


def test_reading_ends_with_the_batches(time: Time) -> None:
    assert list(Clock().reading(slow_batches(time))) == list(range(6))
