"""The training loop of a rank: the steps, and around them the hooks in `lt_train.train.hooks`.

Every rank runs the same steps and the same hooks. `lt_train.train.training_run` builds the arguments of `Trainer`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lt_train.process.signals import Limits, Reason
from lt_train.train.hooks.hook import Hook

if TYPE_CHECKING:
    from lt_train.checkpoint.training_state import TrainingState
    from lt_train.metrics.step_timer import Clock
    from lt_train.train.train_step import Stepper


class Trainer:
    """Train from the iteration of `state` to `last_step` on micro batches from `batches`.

    With `--data-schedule`, a run of `total_steps` may have several parts; `last_step` ends the current part.
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
        """Train to the last step, or to the first step with a reason to end. Return the reason.

        `largest` all-reduces a number to its maximum over all ranks.
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
        """Return this rank's reason to end after `iteration` steps, followed by the hooks' answers."""
        answers: list[int] = [self.limits.reached(iteration)]
        self._counts = []
        for hook in self.hooks:
            hook_answers = hook.answers()
            self._counts.append(len(hook_answers))
            answers += hook_answers
        return answers

    def _reason_to_end(self, largest: Sequence[int]) -> Reason:
        """Pass each hook the maxima of its answers. Return the reason to end that the ranks agreed on in the step."""
        begin = 1
        for hook, count in zip(self.hooks, self._counts, strict=True):
            hook.agreed(largest[begin : begin + count])
            begin += count
        if self.state.iteration == self.total_steps:
            return Reason.NONE
        ends_part = Reason.PHASE if self.state.iteration == self.last_step else Reason.NONE
        return Reason(max(largest[0], ends_part))
