"""Record the progress of an attempt on rank 0, for the log line of a recovery and for the detection of crash loops."""

from typing import TYPE_CHECKING

from lt_train.process.signals import Reason
from lt_train.train.hooks.hook import Hook

if TYPE_CHECKING:
    from lt_train.checkpoint.training_state import TrainingState
    from lt_train.metrics.log import Log
    from lt_train.train.crash_loop import Attempt
    from lt_train.train.train_step import StepResult


class Recovery(Hook):
    def __init__(self, state: "TrainingState", log: "Log", attempt: "Attempt"):
        self.state = state
        self.log = log
        self.attempt = attempt

    def after_step(self, result: "StepResult", stop: Reason) -> None:
        self.attempt.write_step(self.state.iteration)
        if recovery := self.attempt.take_recovery(self.state.iteration):
            self.log.recovery(recovery)

    def at_end(self, stop: Reason) -> None:
        self.attempt.end(self.state.iteration)
