"""Checkpoints in SAVE, and those on the nodes' own disks between them."""

from typing import TYPE_CHECKING

from lt_train.runtime import device
from lt_train.runtime.signals import Reason
from lt_train.train.hooks.hook import Hook

if TYPE_CHECKING:
    import torch

    from lt_train.checkpoint.local.copies import LocalCopies
    from lt_train.checkpoint.local.local_saver import LocalSaver
    from lt_train.checkpoint.saver import Saver
    from lt_train.checkpoint.training_state import TrainingState
    from lt_train.runtime.watchdog import Watchdog
    from lt_train.train.train_step import StepResult


class Checkpoints(Hook):
    """Saves every `interval` steps, after the last step, and when the run ends before it. `saver` is open during the steps."""

    IS_PAUSE = True

    def __init__(
        self,
        saver: "Saver",
        interval: int,
        total_steps: int,
        state: "TrainingState",
        where: "torch.device",
        watchdog: "Watchdog",
    ):
        self.saver = saver
        self.interval = interval
        self.total_steps = total_steps
        self.state = state
        self.where = where
        self.watchdog = watchdog
        self.saved_iteration = state.iteration
        self._loss: float | None = None

    def after_step(self, result: "StepResult", stop: Reason) -> None:
        iteration = self.state.iteration
        self._loss = result.loss
        self.saver.poll(result.loss, self.watchdog.slow)
        is_final = iteration == self.total_steps or bool(stop)
        if is_final or iteration % self.interval == 0:
            with self.watchdog.slow():
                device.release(self.where)
                self.saver.save(result.loss, is_final=is_final)
            self.saved_iteration = iteration

    def before_end(self) -> None:
        """Save the steps since the last checkpoint: the run ends while it waits."""
        if self.state.iteration != self.saved_iteration:
            self.saver.save(self._loss, is_final=True)


class LocalCheckpoints(Hook):
    """Saves to the nodes' disks after the steps that `checkpoints`, called before, does not save.

    A run that is done deletes its copies there.
    """

    IS_PAUSE = True

    def __init__(
        self,
        saver: "LocalSaver",
        copies: "LocalCopies",
        checkpoints: Checkpoints,
        state: "TrainingState",
        watchdog: "Watchdog",
    ):
        self.saver = saver
        self.copies = copies
        self.checkpoints = checkpoints
        self.state = state
        self.watchdog = watchdog

    def after_step(self, result: "StepResult", stop: Reason) -> None:
        if self.checkpoints.saved_iteration != self.state.iteration:
            self.saver.after_step(result.loss, self.watchdog.slow)

    def at_end(self, stop: Reason) -> None:
        if not stop:
            self.copies.delete()
