"""One training step of a rank: the gradients of a global batch, then the optimizer."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lt_train.config.settings.faults import Faults
from lt_train.config.settings.optimization import Optimization
from lt_train.config.settings.precision import Precision
from lt_train.config.settings.skipping import Skipping
from lt_train.data.batch import Batch
from lt_train.models.chunks import unwrapped
from lt_train.optim import optimizer
from lt_train.runtime import agreement
from lt_train.runtime.reading import Reading
from lt_train.train.forward_backward import ForwardBackward, Losses
from lt_train.train.step_check import StepCheck

if TYPE_CHECKING:
    from lt_train.checkpoint.training_state import TrainingState


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The same on every rank. `loss` is the mean over the global batch of `samples`, in nats per token.

    A step that was to be skipped has no loss; all of its samples are `left_out`, of another step those of --skip-samples. One
    that was skipped for its gradients has not `updated`, and no `grad_norm` when the loss scale was too high. `loss_scale` is
    that of the next step, 1 without scaling; `scale_falls` says that a skipped step can still lower it. `largest` is over all
    ranks, of each of the numbers that the ranks were asked for. `prediction_loss` is that of the multi-token prediction layers,
    where there are some. `source_sums` has for each dataset of a blend the sum of its tokens' losses, then for each the number of
    tokens. `sample_losses` are those of the global batch in its order, where they were asked for.
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
    """Makes optimizer steps on the model of `state`, with the gradients of `forward_backward`."""

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
        unwrapped(state.chunks[0]).config.grad_scale_func = scale_loss
        where, interval = forward_backward.where, faults.check_replay_interval
        self.check = StepCheck(interval, precision.deterministic, state, where, self.clear_gradients)
        self.before_update: Callable[[], None] = lambda: None
        self.clear_gradients()

    def clear_gradients(self) -> None:
        """Make the gradients ready for the next step: zero, or to be overwritten."""
        for chunk in self.state.chunks:
            chunk.zero_grad_buffer()

    def train(self, batches: Iterator[Batch], own: Callable[[], Sequence[int]] = tuple) -> StepResult:
        """One optimizer step over a global batch; moves the schedule on unless the step was skipped.

        `own` gives this rank's numbers of those whose largest the result has. The optimizer may still run when this returns.
        """
        state, forward_backward = self.state, self.forward_backward
        samples = forward_backward.batches.size_at(state.consumed_samples)
        numbers = range(state.consumed_samples, state.consumed_samples + samples)
        left_out = len(self.skipping.skipped(state.iteration + 1, numbers))
        if left_out == samples:
            return self._pass_over(samples, own)
        state.optimizer.zero_grad()
        losses = self._gradients(batches, samples)
        loss = Reading(forward_backward.mean(losses, forward_backward.sources))
        of_samples = Reading(forward_backward.sample_losses(losses, samples)) if forward_backward.keeps_samples else None
        largest = agreement.asked(own(), forward_backward.where)
        self.before_update()
        outcome = optimizer.step(state.optimizer, self.clip_grad)
        self.clear_gradients()
        updated, grad_norm = outcome()
        if updated:
            state.scheduler.step(increment=samples)
        state.iteration += 1
        state.consumed_samples += samples
        scale = optimizer.loss_scale(state.optimizer)
        mean, *more = loss.values()
        sources = 2 * forward_backward.sources
        return StepResult(
            mean,
            samples,
            grad_norm,
            updated,
            scale,
            self.precision.scale_falls(scale),
            largest(),
            more[0] if len(more) > sources else None,
            left_out,
            more[-sources:] if sources else (),
            of_samples.values() if of_samples else None,
        )

    def _gradients(self, batches: Iterator[Batch], samples: int) -> Losses:
        run = partial(self.forward_backward.run, samples=samples, forward_only=False)
        if not self.check.is_due(self.state.iteration + 1):
            return run(batches)
        return self.check.twice(run, batches, self.forward_backward.micro_batches(samples))

    def _pass_over(self, samples: int, own: Callable[[], Sequence[int]]) -> StepResult:
        """A step that leaves all but the position in the data as it is; its micro batches are not read."""
        state = self.state
        largest = agreement.asked(own(), self.forward_backward.where)
        state.iteration += 1
        state.consumed_samples += samples
        scale = optimizer.loss_scale(state.optimizer)
        return StepResult(None, samples, None, False, scale, largest=largest(), left_out=samples)
