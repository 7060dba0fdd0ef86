"""What the training loop calls around each step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lt_train.runtime.signals import Reason

if TYPE_CHECKING:
    from lt_train.train.train_step import StepResult


class Hook:
    """One concern of a run on one rank. All ranks have the same hooks in the same order, so that a method may communicate with
    the other ranks; a hook of the first rank alone does not, and has no `answers`.

    A hook asks the ranks for maxima without a collective of its own: `answers` joins the all-reduce of the step, before the
    optimizer runs, and `agreed` gets the largest answer of all ranks.
    """

    IS_PAUSE = False
    """Whether the time of `after_step` belongs to no step."""

    def before_step(self) -> Reason:
        """Called before each step; a reason ends the run before that step."""
        return Reason.NONE

    def answers(self) -> Sequence[int]:
        """This rank's numbers during a step, always as many."""
        return ()

    def agreed(self, largest: Sequence[int]) -> None:
        """Of all ranks, the largest of each of `answers`."""

    def after_step(self, result: "StepResult", stop: Reason) -> None:
        """Called after each step; `stop` is why the run ends with this step, before its last one."""

    def before_end(self) -> None:
        """Called when a hook ends the run in `before_step`."""

    def at_end(self, stop: Reason) -> None:
        """Called after the last step, when all checkpoints are complete."""
