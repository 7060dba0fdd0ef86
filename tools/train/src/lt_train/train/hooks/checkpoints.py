"""Save checkpoints to the --save directory and, between them, local checkpoints to the disks of the nodes."""

from typing import TYPE_CHECKING

from lt_train.process import device
from lt_train.process.signals import Reason
from lt_train.train.hooks.hook import Hook

if TYPE_CHECKING:
    import torch

    from lt_train.checkpoint.local.copies import LocalCopies
    from lt_train.checkpoint.local.local_saver import LocalSaver
    from lt_train.checkpoint.saver import Saver
    from lt_train.checkpoint.training_state import TrainingState
    from lt_train.process.watchdog import Watchdog
    from lt_train.train.train_step import StepResult


class Checkpoints(Hook):
    """Save every `interval` steps, after the last step, and when the run ends early. `saver` stays open during the steps."""

    IS_PAUSE = True

    def __init__(
        self,
        saver: "Saver",
        interval: int,
        total_steps: int,
        state: "TrainingState",
        rank_device: "torch.device",
        watchdog: "Watchdog",
    ):
        self.saver = saver
        self.interval = interval
        self.total_steps = total_steps
        self.state = state
        self.device = rank_device
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
                device.release(self.device)
                self.saver.save(result.loss, is_final=is_final)
            self.saved_iteration = iteration

    def before_end(self) -> None:
        """Save the steps since the last checkpoint, because the run ends while it waits for data."""
        if self.state.iteration != self.saved_iteration:
            self.saver.save(self._loss, is_final=True)


class LocalCheckpoints(Hook):
    """Save to the disks of the nodes after each step that `checkpoints`, an earlier hook, has not saved.

    A run that reaches its last step deletes its local checkpoints.
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
