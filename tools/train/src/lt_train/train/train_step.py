"""Make a training step on a rank: compute the gradients of a global batch, then run the optimizer."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lt_train.config.settings.faults import Faults
from lt_train.config.settings.optimization import Optimization
from lt_train.config.settings.precision import Precision
from lt_train.config.settings.skipping import Skipping
from lt_train.data.batch import Batch
from lt_train.models.chunks import unwrap
from lt_train.optim import optimizer
from lt_train.process import agreement
from lt_train.process.reading import Reading
from lt_train.train.forward_backward import ForwardBackward, Losses
from lt_train.train.step_check import StepCheck

if TYPE_CHECKING:
    from lt_train.checkpoint.training_state import TrainingState


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The result of a step, identical on all ranks.

    `loss` is the mean over the global batch of `samples`, in nats per token; None for a skipped step. `left_out` counts the
    skipped samples: the whole batch in a skipped step, else the samples that --skip-samples excluded. `updated` is False if the
    optimizer skipped the step because the gradients were not finite; `grad_norm` is then None if the loss scale was too high.
    `loss_scale` applies to the next step and is 1 without scaling; `scale_falls`: a skipped step can still lower it. `largest`
    holds the maxima over all ranks of the numbers from `Stepper.train`'s `local_numbers`. `prediction_loss` is the loss of the
    multi-token prediction layers, None without such layers. `source_sums` holds the sums of token losses by dataset, then the
    token counts by dataset. `sample_losses` is in the order of the global batch, None without --log-sample-loss.
    """

    loss: float | None
    samples: int
    grad_norm: float | None
    updated: bool
    loss_scale: float = 1.0
    scale_falls: bool = False
    largest: Sequence[int] = ()
    prediction_loss: float | None = None
    left_out: int = 0
    source_sums: Sequence[float] = ()
    sample_losses: Sequence[float] | None = None


class Stepper:
    """Make optimizer steps on the model of `state`, with the gradients of `forward_backward`."""

    def __init__(
        self,
        forward_backward: ForwardBackward,
        optimization: Optimization,
        precision: Precision,
        skipping: Skipping,
        faults: Faults,
        state: "TrainingState",
    ):
        self.forward_backward = forward_backward
        self.clip_grad = optimization.clip_grad
        self.precision = precision
        self.skipping = skipping
        self.state = state
        scale_loss = state.optimizer.scale_loss if optimizer.scales_losses(state.optimizer) else None
        unwrap(state.chunks[0]).config.grad_scale_func = scale_loss
        device, interval = forward_backward.device, faults.check_replay_interval
        self.check = StepCheck(interval, precision.deterministic, state, device, self.clear_gradients)
        self.before_update: Callable[[], None] = lambda: None
        self.clear_gradients()

    def clear_gradients(self) -> None:
        """Prepare the gradients for the next step: zero them, or mark them to be overwritten."""
        for chunk in self.state.chunks:
            chunk.zero_grad_buffer()

    def train(self, batches: Iterator[Batch], local_numbers: Callable[[], Sequence[int]] = tuple) -> StepResult:
        """Make one optimizer step over a global batch, and advance the schedule unless the step was skipped.

        `local_numbers` returns numbers of this rank; the result has their maxima over all ranks. The optimizer's kernels may
        still run on the GPU when this returns.
        """
        state, forward_backward = self.state, self.forward_backward
        samples = forward_backward.batches.size_at(state.consumed_samples)
        numbers = range(state.consumed_samples, state.consumed_samples + samples)
        left_out = len(self.skipping.skipped(state.iteration + 1, numbers))
        if left_out == samples:
            return self._skip_step(samples, local_numbers)
        state.optimizer.zero_grad()
        losses = self._gradients(batches, samples)
        loss = Reading(forward_backward.mean(losses, forward_backward.sources))
        sample_losses = Reading(forward_backward.sample_losses(losses, samples)) if forward_backward.keeps_samples else None
        largest = agreement.start_maximum(local_numbers(), forward_backward.device)
        self.before_update()
        outcome = optimizer.step(state.optimizer, self.clip_grad)
        self.clear_gradients()
        updated, grad_norm = outcome()
        if updated:
            state.scheduler.step(increment=samples)
            if state.average:
                state.average.update()
        state.iteration += 1
        state.consumed_samples += samples
        scale = optimizer.loss_scale(state.optimizer)
        mean, *other_losses = loss.values()
        sources = 2 * forward_backward.sources
        return StepResult(
            mean,
            samples,
            grad_norm,
            updated,
            scale,
            self.precision.scale_falls(scale),
            largest(),
            other_losses[0] if len(other_losses) > sources else None,
            left_out,
            other_losses[-sources:] if sources else (),
            sample_losses.values() if sample_losses else None,
        )

    def _gradients(self, batches: Iterator[Batch], samples: int) -> Losses:
        run = partial(self.forward_backward.run, samples=samples, forward_only=False)
        if not self.check.is_due(self.state.iteration + 1):
            return run(batches)
        return self.check.run_twice(run, batches, self.forward_backward.micro_batches(samples))

    def _skip_step(self, samples: int, local_numbers: Callable[[], Sequence[int]]) -> StepResult:
        """Advance the position in the data by one step, without reading its micro batches."""
        state = self.state
        largest = agreement.start_maximum(local_numbers(), self.forward_backward.device)
        state.iteration += 1
        state.consumed_samples += samples
        scale = optimizer.loss_scale(state.optimizer)
        return StepResult(None, samples, None, False, scale, largest=largest(), left_out=samples)
