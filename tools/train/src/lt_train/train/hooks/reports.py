"""Log the steps: a line every `--log-interval` steps, and a line for every step that leaves samples out."""

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lt_shared.contracts.run_log import Step
from lt_shared.data.sample_order.log_notes import Skipped
from lt_train.metrics.throughput import Speedometer
from lt_train.metrics.unlogged import Unlogged
from lt_train.process import device
from lt_train.process.signals import Reason
from lt_train.train.hooks import timers
from lt_train.train.hooks.hook import Hook

if TYPE_CHECKING:
    import torch
    from megatron.core.timers import Timers

    from lt_train.checkpoint.training_state import TrainingState
    from lt_train.metrics.log import Log
    from lt_train.metrics.step_timer import Clock
    from lt_train.train.train_step import StepResult


class Reports(Hook):
    """Log means over the steps since the previous line. `datasets` are the names of the blend's datasets.

    The logged memory is the peak of allocated and of reserved memory in bytes, the maximum over all ranks. The ranks agree on it
    before the optimizer runs.
    """

    def __init__(
        self,
        state: "TrainingState",
        log: "Log",
        clock: "Clock",
        speedometer: Speedometer,
        rank_device: "torch.device",
        datasets: Sequence[str],
        interval: int,
        total_steps: int,
        timers: "Timers | None",
    ):
        self.state = state
        self.log = log
        self.clock = clock
        self.speedometer = speedometer
        self.device = rank_device
        self.datasets = datasets
        self.interval = interval
        self.total_steps = total_steps
        self.timers = timers
        self._logged_samples = state.consumed_samples
        self._memory_bytes: Sequence[int] = (0, 0)

    def answers(self) -> Sequence[int]:
        allocated, reserved = device.peak_memory(self.device)
        return [allocated, reserved or 0]

    def agreed(self, largest: Sequence[int]) -> None:
        self._memory_bytes = largest

    def after_step(self, result: "StepResult", stop: Reason) -> None:
        self._note(result)
        if self.state.iteration == self.total_steps or self.state.iteration % self.interval == 0:
            self._report(result)

    def report_last(self, result: "StepResult") -> None:
        """Report the steps since the last line, before an error ends the run with this step."""
        self._note(result)
        self._report(result)

    def _note(self, result: "StepResult") -> None:
        state = self.state
        state.unlogged.add(result.loss, result.updated, result.source_sums)
        if result.left_out:
            self.log.skipped(Skipped(state.iteration, result.left_out, result.samples))
            if result.loss is None:
                # The samples of a skipped step do not count as trained tokens per second.
                self._logged_samples += result.samples
        if result.sample_losses is not None:
            self.log.sample_losses(state.iteration, state.consumed_samples - result.samples, result.sample_losses)

    def _report(self, result: "StepResult") -> None:
        """Write a line about the steps since the last line. All ranks call it."""
        state = self.state
        lap = self.clock.lap()
        # `_memory_bytes` was all-reduced before the optimizer's step, which may have raised the peak of this rank.
        allocated, reserved = device.peak_memory(self.device)
        speed = self.speedometer.speed(state.consumed_samples - self._logged_samples, lap.step_seconds * lap.steps)
        step = Step(
            step=state.iteration,
            total_steps=self.total_steps,
            consumed_samples=state.consumed_samples,
            step_seconds=lap.step_seconds,
            tflops_per_gpu=speed.tflops_per_gpu,
            learning_rate=_learning_rate(state.optimizer.param_groups),
            global_batch_size=result.samples,
            loss=state.unlogged.mean_loss,
            loss_scale=result.loss_scale,
            grad_norm=result.grad_norm,
            skipped_steps=state.unlogged.skipped_steps,
            nan_steps=state.unlogged.nan_steps,
            time=datetime.datetime.now(),
            tokens_per_second_per_gpu=speed.tokens_per_second_per_gpu,
            mfu=speed.mfu,
            memory_bytes=max(self._memory_bytes[0], allocated),
            reserved_memory_bytes=max(self._memory_bytes[1], reserved or 0) or None,
            prediction_loss=result.prediction_loss,
            source_losses=self._source_losses(),
        )
        self.log.step(step, speed.tokens_per_second, lap)
        if self.timers:
            for line in timers.report(self.timers, lap.steps):
                self.log.line(line)
        state.unlogged, self._logged_samples = Unlogged(), state.consumed_samples

    def _source_losses(self) -> dict[str, float]:
        """Return the mean loss by dataset name, for the datasets with a token since the last line."""
        losses = zip(self.datasets, self.state.unlogged.source_losses, strict=False)
        return {name: loss for name, loss in losses if loss is not None and math.isfinite(loss)}


def _learning_rate(groups: Sequence[Mapping[str, Any]]) -> float:
    """Return the rate of the parameters without a rate of their own. With muP, the matrices of layers have lower rates."""
    return float(next((group for group in groups if group.get("default_config", True)), groups[0])["lr"])
