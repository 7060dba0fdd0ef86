"""Copy the state to the nodes' memory as often as the copies cost at most a hundredth of the training time, or every N steps."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lt_train.process.signals import Reason
from lt_train.train.hooks.hook import Hook

if TYPE_CHECKING:
    from lt_train.checkpoint.memory.copier import Copier
    from lt_train.checkpoint.training_state import TrainingState
    from lt_train.metrics.log import Log
    from lt_train.train.train_step import StepResult

SHARE = 0.01
# The first copy comes after this many steps, because only a copy shows what copies cost.
FIRST_STEPS = 10
# Weight of a new step in the average of the steps without a copy.
NEW_WEIGHT = 0.2


class MemoryCopies(Hook):
    """`interval` is in steps, or 0: as often as SHARE of the training time allows.

    A copy costs the time that training waits for it, and by how much steps are slower than usual until the copy is on two nodes.
    Steps vary by more than that, so faster steps count as well. All ranks copy the same steps: each says whether it is ready, and
    the maximum over the ranks decides.
    """

    def __init__(self, copier: "Copier", state: "TrainingState", interval: int, log: "Log"):
        self.copier = copier
        self.state = state
        self.log = log
        self.interval = interval
        self.copies = 0
        self.steps, self.training_seconds = 0, 0.0
        # What the earlier copies have cost, what the last one is expected to cost, and what it has cost so far.
        self._earlier_seconds = self._expected_seconds = 0.0
        self._waited_seconds = self._slower_seconds = 0.0
        self._usual_seconds: float | None = None
        self._began = time.perf_counter()
        self._is_ready = False

    def before_step(self) -> Reason:
        self._began = time.perf_counter()
        return Reason.NONE

    def answers(self) -> Sequence[int]:
        """Return 1 if this rank does not copy the state after the step."""
        return (int(self.copier.is_busy or not self._is_due(self.state.iteration + 1)),)

    def agreed(self, largest: Sequence[int]) -> None:
        self._is_ready = largest[0] == 0

    def after_step(self, result: "StepResult", stop: Reason) -> None:
        self._count(time.perf_counter() - self._began)
        self.copier.poll()
        if self._is_ready:
            self._is_ready = False
            self._earlier_seconds, self._expected_seconds = self.spent_seconds, self._present_seconds
            self.copier.begin()
            self.copies += 1
            self._waited_seconds, self._slower_seconds = self.copier.waited_seconds, 0.0

    @property
    def spent_seconds(self) -> float:
        """What all copies have cost."""
        return self._earlier_seconds + self._present_seconds

    @property
    def _present_seconds(self) -> float:
        return self._waited_seconds + max(0.0, self._slower_seconds)

    def at_end(self, stop: Reason) -> None:
        share = self.spent_seconds / max(self.training_seconds, self.spent_seconds, 1e-9)
        self.log.line(
            f"  copies in memory: {self.copies} of {self.copier.size_bytes / 2**30:.2f} GiB on the first rank, which cost"
            f" {self.spent_seconds:.2f} s, {share:.2%} of the training time"
        )

    def _is_due(self, iteration: int) -> bool:
        if self.interval:
            return iteration % self.interval == 0
        if not self.copies:
            return self.steps >= FIRST_STEPS
        expected = max(self._expected_seconds, self._present_seconds)
        return self.spent_seconds + expected <= SHARE * self.training_seconds

    def _count(self, step_seconds: float) -> None:
        self.steps += 1
        self.training_seconds += step_seconds
        if self.steps == 1:
            # It compiles kernels and fills caches.
            return
        if self._usual_seconds is None:
            self._usual_seconds = step_seconds
        elif self.copies and self.copier.is_busy:
            self._slower_seconds += step_seconds - self._usual_seconds
        else:
            self._usual_seconds += NEW_WEIGHT * (step_seconds - self._usual_seconds)
