"""The training loop of one rank: the steps, and around them the hooks of `lt_train.train.hooks`.

Every rank runs the same steps and the same hooks. `lt_train.train.training_run` builds what the loop needs.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lt_train.runtime.signals import Limits, Reason
from lt_train.train.hooks.hook import Hook

if TYPE_CHECKING:
    from lt_train.checkpoint.training_state import TrainingState
    from lt_train.metrics.step_timer import Clock
    from lt_train.train.train_step import Stepper


class Trainer:
    """The steps from the iteration of `state` to `last_step`, on micro batches from `batches`.

    A run of `total_steps` may have several parts, of which `last_step` is the end of this one (`--data-schedule`).
    """

    def __init__(
        self,
        state: "TrainingState",
        stepper: "Stepper",
        batches: Iterator[Any],
        clock: "Clock",
        limits: Limits,
        last_step: int,
        total_steps: int,
        hooks: Sequence[Hook],
    ):
        self.state = state
        self.stepper = stepper
        self.batches = batches
        self.clock = clock
        self.limits = limits
        self.last_step = last_step
        self.total_steps = total_steps
        self.hooks = hooks

    def run(self, largest: Callable[[int], int]) -> Reason:
        """Train to the last step, or to the first after which the run has a reason to end.

        `largest` returns the maximum over all ranks of a number of each.
        """
        stop = Reason(largest(Limits.received()))
        self.clock.start()
        while self.state.iteration < self.last_step and not stop:
            if stop := self._before_step():
                for hook in self.hooks:
                    hook.before_end()
                break
            stop = self._step()
        return stop

    def finish(self, stop: Reason) -> None:
        for hook in self.hooks:
            hook.at_end(stop)

    def _before_step(self) -> Reason:
        for hook in self.hooks:
            if stop := hook.before_step():
                return stop
        return Reason.NONE

    def _step(self) -> Reason:
        with self.clock.step():
            result = self.stepper.train(self.batches, partial(self._answers, self.state.iteration + 1))
        stop = self._reason_to_end(result.largest)
        for hook in self.hooks:
            with self.clock.pause() if hook.IS_PAUSE else contextlib.nullcontext():
                hook.after_step(result, stop)
        return stop

    def _answers(self, iteration: int) -> list[int]:
        """This rank's reason to end after `iteration` steps, and the answers of the hooks."""
        answers: list[int] = [self.limits.reached(iteration)]
        self._counts = []
        for hook in self.hooks:
            of_hook = hook.answers()
            self._counts.append(len(of_hook))
            answers += of_hook
        return answers

    def _reason_to_end(self, largest: Sequence[int]) -> Reason:
        """On what the ranks have agreed in the step."""
        begin = 1
        for hook, count in zip(self.hooks, self._counts, strict=True):
            hook.agreed(largest[begin : begin + count])
            begin += count
        if self.state.iteration == self.total_steps:
            return Reason.NONE
        ends_part = Reason.PHASE if self.state.iteration == self.last_step else Reason.NONE
        return Reason(max(largest[0], ends_part))
