"""Record traces and memory snapshots of the steps chosen with --profile."""

from typing import TYPE_CHECKING

from lt_train.process.signals import Reason
from lt_train.train.hooks.hook import Hook

if TYPE_CHECKING:
    from lt_train.metrics.profiling import Profiler
    from lt_train.train.train_step import StepResult


class Profile(Hook):
    IS_PAUSE = True

    def __init__(self, profiler: "Profiler"):
        self.profiler = profiler

    def after_step(self, result: "StepResult", stop: Reason) -> None:
        self.profiler.step()
