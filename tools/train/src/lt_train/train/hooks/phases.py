"""Log the beginning of every phase in `--data-schedule`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lt_shared.data.sample_order.log_notes import PhaseBegins
from lt_train.process.signals import Reason
from lt_train.train.hooks.hook import Hook

if TYPE_CHECKING:
    from lt_train.checkpoint.training_state import TrainingState
    from lt_train.config.settings.batches import Batches
    from lt_train.config.settings.data_schedule import Schedule
    from lt_train.metrics.log import Log


class Phases(Hook):
    """Log that a phase begins, before its first step. `datasets` are the names of the datasets of the blend."""

    def __init__(self, schedule: "Schedule", batches: "Batches", datasets: Sequence[str], state: "TrainingState", log: "Log"):
        self.schedule = schedule
        self.batches = batches
        self.datasets = datasets
        self.state = state
        self.log = log

    def before_step(self) -> Reason:
        phase = self.schedule.begins(self.batches, self.state.iteration)
        if phase is not None:
            weights = {name: weight for name, weight in zip(self.datasets, phase.weights, strict=True) if weight}
            size = self.batches.size_at(self.state.consumed_samples) if self.batches.phase_sizes else None
            self.log.phase(PhaseBegins(self.state.iteration + 1, phase.name, phase.seq_length, weights, size))
        return Reason.NONE
