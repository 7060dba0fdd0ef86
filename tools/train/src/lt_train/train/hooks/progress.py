"""Signs of life: the heartbeat of the watchdog, the times of the start of the run, the progress bar."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from lt_train.process.signals import Reason
from lt_train.process.start_clock import clock
from lt_train.train.hooks.hook import Hook

if TYPE_CHECKING:
    from lt_train.checkpoint.training_state import TrainingState
    from lt_train.metrics.log import Log
    from lt_train.process.watchdog import Watchdog
    from lt_train.train.train_step import StepResult


class Progress(Hook):
    """Send the watchdog a heartbeat after every step, and call `after_first_step` once."""

    def __init__(self, state: "TrainingState", log: "Log", watchdog: "Watchdog", after_first_step: Callable[[], None]):
        self.state = state
        self.log = log
        self.watchdog = watchdog
        self.after_first_step = after_first_step

    def after_step(self, result: "StepResult", stop: Reason) -> None:
        self.watchdog.beat(self.state.iteration)
        if started := clock.end(self.state.iteration):
            self.after_first_step()
            self.log.started(started)
        self.log.advance()
