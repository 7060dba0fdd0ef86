"""The methods that the training loop calls around each step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lt_train.process.signals import Reason

if TYPE_CHECKING:
    from lt_train.train.train_step import StepResult


class Hook:
    """A concern of a run, on one rank.

    All ranks have the same hooks in the same order, so a method may call collectives. The exception are hooks that exist on rank
    0 only: they call no collective and have no `answers`.

    A hook gets maxima over all ranks without an extra collective: the all-reduce of the step, before the optimizer runs, includes
    its `answers`, and `agreed` receives the maxima.
    """

    IS_PAUSE = False
    """Whether to exclude the time of `after_step` from the step times."""

    def before_step(self) -> Reason:
        """Run before each step. A reason other than NONE ends the run before this step."""
        return Reason.NONE

    def answers(self) -> Sequence[int]:
        """Return this rank's numbers for the all-reduce of a step. Their count never changes."""
        return ()

    def agreed(self, largest: Sequence[int]) -> None:
        """Receive the maxima over all ranks of the numbers in `answers`."""

    def after_step(self, result: "StepResult", stop: Reason) -> None:
        """Run after each step. `stop` is the reason if the run ends early, after this step."""

    def before_end(self) -> None:
        """Run when the `before_step` of a hook has ended the run."""

    def at_end(self, stop: Reason) -> None:
        """Run after the last step, when all checkpoints are complete."""
