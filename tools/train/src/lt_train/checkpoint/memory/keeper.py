"""The launcher, as a rank sees it that leaves copies of its state in the launcher's memory, which outlives the rank.

A module variable holds it, because a rank has one launcher: `lt_train.launch.worker` sets it, and the training run reads it.
"""

from typing import Protocol


class Keeper(Protocol):
    """`stored_step` is the step of the copies that all ranks of this attempt can restore, 0 if there is none."""

    stored_step: int

    def keep(self, step: int, descriptor: int, size_bytes: int) -> None:
        """Let the launcher keep the complete copy of `step` in the memory of `descriptor`."""

    def is_safe(self, step: int) -> bool:
        """Whether another node has this rank's copy of `step`, too, or the run has one node."""

    def fetch(self) -> int:
        """Return a descriptor of the memory with the copy of `stored_step`. Raise IoFailure if the launcher has none."""


_keeper: Keeper | None = None


def use(keeper: Keeper) -> None:
    global _keeper
    _keeper = keeper


def present() -> Keeper | None:
    """Return this rank's keeper, None if its launcher keeps no copies."""
    return _keeper
