"""How often the state is copied to memory: for a hundredth of the training time, or every N steps."""

from types import SimpleNamespace
from typing import Any

import pytest

from lt_train.process.signals import Reason
from lt_train.train.hooks import memory_copies
from lt_train.train.hooks.memory_copies import MemoryCopies


class Copier:
    """Each copy takes `seconds` and is safe `steps` steps later, which are slower by a tenth."""

    size_bytes = 10**8

    def __init__(self, clock: list[float], seconds: float, steps: int = 3):
        self.clock, self.waited_seconds, self.steps = clock, seconds, steps
        self.left_steps = 0
        self.at: list[float] = []

    @property
    def is_busy(self) -> bool:
        return self.left_steps > 0

    def poll(self) -> None:
        self.left_steps -= self.is_busy

    def begin(self) -> None:
        assert not self.is_busy
        self.left_steps = self.steps
        self.at.append(self.clock[0])
        self.clock[0] += self.waited_seconds


def train(
    monkeypatch: pytest.MonkeyPatch, steps: int, interval: int, seconds: float, other_rank: int = 0
) -> tuple[Copier, float]:
    """Train with steps of a second. Return the copier, and the seconds that the copies have cost."""
    clock = [0.0]
    monkeypatch.setattr(memory_copies, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    copier, state = Copier(clock, seconds), SimpleNamespace(iteration=0)
    lines: list[str] = []
    hook = MemoryCopies(copier, state, interval, SimpleNamespace(line=lines.append))  # type: ignore[arg-type]
    result: Any = None
    for _ in range(steps):
        hook.before_step()
        hook.agreed([max(*hook.answers(), other_rank)])
        clock[0] += 1.1 if copier.is_busy else 1.0
        state.iteration += 1
        hook.after_step(result, Reason.NONE)
    hook.at_end(Reason.NONE)
    assert f"copies in memory: {len(copier.at)} of 0.09 GiB on the first rank" in lines[0]
    return copier, clock[0] - steps


@pytest.mark.parametrize("seconds", [0.01, 0.5, 2.0])
def test_copies_cost_a_hundredth(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    copier, cost_seconds = train(monkeypatch, 4000, 0, seconds)
    assert 0.5 < cost_seconds / 40 <= 1.1
    assert len(copier.at) == pytest.approx(cost_seconds / (seconds + 0.3), abs=1.5)


def test_the_first_copy_does_not_wait_for_its_cost_to_be_a_hundredth(monkeypatch: pytest.MonkeyPatch) -> None:
    copier, _ = train(monkeypatch, 100, 0, 2.0)
    assert copier.at == [11.0]


def test_every_n_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    copier, _ = train(monkeypatch, 20, 5, 0.5)
    assert len(copier.at) == 4


def test_a_rank_that_is_not_ready_holds_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    copier, _ = train(monkeypatch, 20, 5, 0.5, other_rank=1)
    assert copier.at == []
