"""Detect loss spikes and non-finite gradients; end a run after too many bad steps in a row.

`optimizer.step` skips a step whose gradients hold an infinity or a NaN. One skipped step is harmless, and usual in fp16 while the
loss scale falls from its high initial value. Many in a row mean that the weights or the data are broken, and that the run would
burn its allocation without learning anything. Every rank sees the same numbers, so all ranks decide alike.
"""

import math
import statistics
from typing import TYPE_CHECKING

from lt_shared.console import BadConfig
from lt_shared.contracts import run_log
from lt_shared.data.sample_order.loss_level import LossLevel
from lt_train.process.signals import Reason
from lt_train.train.hooks.hook import Hook

if TYPE_CHECKING:
    from lt_train.checkpoint.training_state import TrainingState
    from lt_train.metrics.log import Log
    from lt_train.train.hooks.reports import Reports
    from lt_train.train.train_step import StepResult

WINDOW_STEPS = 50
FEWEST_STEPS = 20


class Anomalies:
    """Check every step's result. The run ends after `max_nan_steps` bad steps in a row."""

    def __init__(self, max_nan_steps: int):
        self.max_nan_steps = max_nan_steps
        self.bad_steps = 0
        self.level = LossLevel(WINDOW_STEPS, FEWEST_STEPS)

    def observe(self, iteration: int, result: "StepResult") -> str | None:
        """Return a log line if the loss jumped. Raise BadConfig after too many bad steps in a row."""
        if result.loss is None:
            return None
        if not result.updated:
            self._count(iteration, result)
            return None
        self.bad_steps = 0
        if self.level.compare(result.loss) <= 0:
            return None
        recent_losses = self.level.recent
        return run_log.format_loss_spike(iteration, result.loss, statistics.fmean(recent_losses), len(recent_losses))

    def _count(self, iteration: int, result: "StepResult") -> None:
        assert result.loss is not None
        if math.isfinite(result.loss) and result.scale_falls:
            # The gradients overflowed in fp16: the next step has a lower loss scale.
            return
        self.bad_steps += 1
        if self.bad_steps < self.max_nan_steps:
            return
        is_finite = math.isfinite(result.loss)
        finite = "finite" if is_finite else "not finite either"
        raise BadConfig(
            f"gradients were not finite in {self.bad_steps} steps in a row, the last of them {iteration};"
            f" the loss is {finite}, the weights are those of iteration {iteration - self.bad_steps}",
            "lower --lr, raise --lr-warmup-iters, or look at the data of these steps; --max-nan-steps allows more"
            + ("" if is_finite else ", and --cross-entropy-impl triton losses of a token beyond 126 nats"),
        )


class AnomalyCheck(Hook):
    """Log loss spikes. If a run no longer learns, report its last steps through `reports` and end it."""

    def __init__(self, anomalies: Anomalies, state: "TrainingState", log: "Log", reports: "Reports"):
        self.anomalies = anomalies
        self.state = state
        self.log = log
        self.reports = reports

    def after_step(self, result: "StepResult", stop: Reason) -> None:
        try:
            spike = self.anomalies.observe(self.state.iteration, result)
        except BadConfig:
            self.reports.report_last(result)
            raise
        if spike:
            self.log.line(spike)
