"""The order in which the training loop calls its hooks, and what it tells them."""

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from lt_train.metrics.step_timer import Clock
from lt_train.process.signals import Limits, Reason
from lt_train.train.hooks.hook import Hook
from lt_train.train.trainer import Trainer

Call = tuple[Any, ...]


class Recorder(Hook):
    """Answers with the numbers of `answering`; ends the run before the step after `ends_after` steps."""

    def __init__(self, name: str, calls: list[Call], answering: Sequence[int] = (), ends_after: int | None = None):
        self.name = name
        self.calls = calls
        self.answering = answering
        self.steps_left = ends_after

    def before_step(self) -> Reason:
        self.calls.append((self.name, "before"))
        if self.steps_left == 0:
            return Reason.NO_DATA
        if self.steps_left is not None:
            self.steps_left -= 1
        return Reason.NONE

    def answers(self) -> Sequence[int]:
        return self.answering

    def agreed(self, largest: Sequence[int]) -> None:
        self.calls.append((self.name, "agreed", *largest))

    def after_step(self, result: Any, stop: Reason) -> None:
        self.calls.append((self.name, "after", stop))

    def before_end(self) -> None:
        self.calls.append((self.name, "before end"))

    def at_end(self, stop: Reason) -> None:
        self.calls.append((self.name, "end", stop))


def trainer(hooks: Sequence[Hook], last_step: int, total_steps: int, exit_interval: int | None = None) -> Trainer:
    """A trainer whose steps do nothing; another rank's answers are 10 larger, but for the reason to end."""
    state = SimpleNamespace(iteration=0)

    def train(batches: Any, answers: Callable[[], Sequence[int]]) -> Any:
        reason, *others = answers()
        state.iteration += 1
        return SimpleNamespace(largest=[reason, *(number + 10 for number in others)])

    limits = Limits(0, exit_interval, None)
    stepper: Any = SimpleNamespace(train=train)
    return Trainer(state, stepper, itertools.repeat(None), Clock(), limits, last_step, total_steps, hooks)  # type: ignore[arg-type]


def test_each_hook_is_told_in_order_and_gets_the_answers_to_its_own_numbers() -> None:
    calls: list[Call] = []
    loop = trainer([Recorder("a", calls, [1, 2]), Recorder("b", calls), Recorder("c", calls, [3])], 2, 2)
    stop = loop.run(lambda number: number)
    loop.finish(stop)
    step = [
        *(("a", "before"), ("b", "before"), ("c", "before")),
        *(("a", "agreed", 11, 12), ("b", "agreed"), ("c", "agreed", 13)),
        *(("a", "after", Reason.NONE), ("b", "after", Reason.NONE), ("c", "after", Reason.NONE)),
    ]
    assert calls == [*step, *step, *((name, "end", Reason.NONE) for name in "abc")]


def test_a_hook_ends_the_run_before_a_step() -> None:
    calls: list[Call] = []
    loop = trainer([Recorder("a", calls), Recorder("b", calls, ends_after=1), Recorder("c", calls)], 5, 5)
    assert loop.run(lambda number: number) == Reason.NO_DATA
    assert loop.state.iteration == 1
    assert calls[-5:] == [("a", "before"), ("b", "before"), ("a", "before end"), ("b", "before end"), ("c", "before end")]


def test_hooks_know_that_the_run_ends_with_a_step() -> None:
    calls: list[Call] = []
    loop = trainer([Recorder("a", calls)], 5, 5, exit_interval=2)
    assert loop.run(lambda number: number) == Reason.INTERVAL
    assert [call for call in calls if "after" in call] == [("a", "after", Reason.NONE), ("a", "after", Reason.INTERVAL)]


def test_the_end_of_a_part_is_a_reason_and_the_last_step_is_none() -> None:
    assert trainer([], 2, 5).run(lambda number: number) == Reason.PHASE
    assert trainer([], 2, 2, exit_interval=2).run(lambda number: number) == Reason.NONE


def test_a_signal_before_the_first_step_is_obeyed() -> None:
    loop = trainer([], 2, 2)
    assert loop.run(lambda number: Reason.TERMINATION) == Reason.TERMINATION
    assert loop.state.iteration == 0
