"""One training step of a rank: all its micro batches through megatron-core's pipeline schedule, then the optimizer."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads

from lt_train.checkpoint.training_state import TrainingState
from lt_train.config.run_config import RunConfig
from lt_train.data.loader import Batch
from lt_train.models import build_gpt
from lt_train.models.decoder import Decoder
from lt_train.models.mixers.core_attention import document_numbers, sequence_share
from lt_train.models.multi_token_prediction import further
from lt_train.ops import wgrad_accumulation
from lt_train.optim import optimizer
from lt_train.parallel.ddp import Chunk, gathered
from lt_train.runtime import agreement
from lt_train.runtime.reading import Reading
from lt_train.train import pipeline_schedule
from lt_train.train.step_check import StepCheck

LM_LOSS, MTP_LOSS = "lm loss", "mtp loss"
# By dataset of the blend: the sum of the losses of its tokens, and how many tokens there were.
SOURCE_SUMS = "source sums"
# Sums of the losses and numbers of the counted tokens of a micro batch's samples, [2, b].
SAMPLE_SUMS = "sample sums"


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
    """Runs steps and evaluations on the model of `state`."""

    def __init__(self, run_config: RunConfig, state: TrainingState, where: torch.device):
        self.run_config = run_config
        self.state = state
        self.where = where
        self.run_schedule = pipeline_schedule.choose(run_config.parallelism)
        self._connect()
        self.check = StepCheck(run_config, state, where, self.clear_gradients)
        self.before_update: Callable[[], None] = lambda: None
        self.clear_gradients()

    def clear_gradients(self) -> None:
        """Make the gradients ready for the next step: zero, or to be overwritten."""
        for chunk in self.state.chunks:
            chunk.zero_grad_buffer()

    def _connect(self) -> None:
        """Give the schedules their hooks: gradient scaling, the skipping of gradient reduction, and its end."""
        chunks = self.state.chunks
        config = build_gpt.unwrapped(chunks[0]).config
        config.grad_scale_func = self.state.optimizer.scale_loss if optimizer.scales_losses(self.state.optimizer) else None
        without_sync = [chunk.no_sync for chunk in chunks]
        config.no_sync_func = without_sync if len(chunks) > 1 else without_sync[0]
        config.finalize_model_grads_func = partial(wgrad_accumulation.finish, finalize=finalize_model_grads)

    def train(self, batches: Iterator[Batch], own: Callable[[], Sequence[int]] = tuple) -> StepResult:
        """One optimizer step over a global batch; moves the schedule on unless the step was skipped.

        `own` gives this rank's numbers of those whose largest the result has. The optimizer may still run when this returns.
        """
        state = self.state
        samples = self.run_config.batches.size_at(state.consumed_samples)
        numbers = range(state.consumed_samples, state.consumed_samples + samples)
        left_out = len(self.run_config.skipping.skipped(state.iteration + 1, numbers))
        if left_out == samples:
            return self._pass_over(samples, own)
        state.optimizer.zero_grad()
        passed = self._gradients(batches, samples)
        loss = Reading(self._mean(passed, self._sources))
        of_samples = Reading(self.sample_losses(passed, samples)) if self.run_config.reporting.sample_losses else None
        largest = agreement.asked(own(), self.where)
        self.before_update()
        outcome = optimizer.step(state.optimizer, self.run_config.optimization.clip_grad)
        self.clear_gradients()
        updated, grad_norm = outcome()
        if updated:
            state.scheduler.step(increment=samples)
        state.iteration += 1
        state.consumed_samples += samples
        scale = optimizer.loss_scale(state.optimizer)
        mean, *more = loss.values()
        sources = 2 * self._sources
        return StepResult(
            mean,
            samples,
            grad_norm,
            updated,
            scale,
            self.run_config.precision.scale_falls(scale),
            largest(),
            more[0] if len(more) > sources else None,
            left_out,
            more[-sources:] if sources else (),
            of_samples.values() if of_samples else None,
        )

    def _gradients(self, batches: Iterator[Batch], samples: int) -> list[dict[str, torch.Tensor]]:
        if not self.check.is_due(self.state.iteration + 1):
            return self._pass(batches, samples, forward_only=False)
        run_pass = partial(self._pass, samples=samples, forward_only=False)
        return self.check.twice(run_pass, batches, self.run_config.micro_batches(samples))

    def _pass_over(self, samples: int, own: Callable[[], Sequence[int]]) -> StepResult:
        """A step that leaves all but the position in the data as it is; its micro batches are not read."""
        state = self.state
        largest = agreement.asked(own(), self.where)
        state.iteration += 1
        state.consumed_samples += samples
        scale = optimizer.loss_scale(state.optimizer)
        return StepResult(None, samples, None, False, scale, largest=largest(), left_out=samples)

    @property
    def _sources(self) -> int:
        """The datasets whose losses are told apart."""
        count = len(self.run_config.data.datasets)
        return count if count > 1 else 0

    @torch.no_grad()
    def evaluate(self, batches: Iterator[Batch], global_batches: int) -> float:
        """The mean loss over `global_batches`."""
        for chunk in self.state.chunks:
            chunk.eval()
        size = self.run_config.batches.global_batch_size
        with gathered(self.state.chunks):
            means = (self._mean(self._pass(batches, size, forward_only=True)) for _ in range(global_batches))
            losses = [float(Reading(mean).values()[0]) for mean in means]
        for chunk in self.state.chunks:
            chunk.train()
        return sum(losses) / len(losses)

    @torch.no_grad()
    def losses_of_samples(self, batches: Iterator[Batch], samples: int) -> list[float]:
        """Those of the next global batch, which nothing is learned from."""
        found: list[float] = self.sample_losses(self._pass(batches, samples, forward_only=True), samples).tolist()
        return found

    def _pass(self, batches: Iterator[Batch], samples: int, forward_only: bool) -> list[dict[str, torch.Tensor]]:
        """A global batch of `samples` through the pipeline, in micro batches; the last stage gets the losses."""
        run_config, chunks = self.run_config, self.state.chunks
        count = run_config.micro_batches(samples)
        # Every stage of an interleaved pipeline reads each micro batch again.
        readers = list(itertools.tee(itertools.islice(batches, count), len(chunks)))
        losses: list[dict[str, torch.Tensor]] = self.run_schedule(
            forward_step_func=partial(forward_step, keeps_samples=self.run_config.reporting.sample_losses),
            data_iterator=readers if len(chunks) > 1 else readers[0],
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=count,
            seq_length=run_config.batches.seq_length,
            micro_batch_size=run_config.batches.micro_batch_size,
            forward_only=forward_only,
        )
        return losses

    def sample_losses(self, passed: list[dict[str, torch.Tensor]], samples: int) -> torch.Tensor:
        """The mean loss of each sample of a global batch, float64 [samples] on every rank's device; NaN without counted tokens.

        Context-parallel ranks each have the sums of their share of every sample.
        """
        sums = torch.zeros((2, samples), dtype=torch.float64, device=self.where)
        if passed and parallel_state.get_tensor_model_parallel_rank() == 0:
            own = torch.stack([entry[SAMPLE_SUMS] for entry in passed], 1).double()
            of_ranks = sums.view(2, len(passed), -1, own.shape[-1])
            of_ranks[:, :, parallel_state.get_data_parallel_rank()] = own
        if self.run_config.parallelism.world_size > 1:
            torch.distributed.all_reduce(sums)
        return sums[0] / sums[1]

    def _mean(self, losses: list[dict[str, torch.Tensor]], sources: int = 0) -> torch.Tensor:
        """The mean of the micro batches' losses over all data-parallel ranks, on every rank's device; float64 of one element, and
        of a second one with multi-token prediction. Behind them come the sums by `sources`."""
        kinds = [LM_LOSS, MTP_LOSS] if self.run_config.architecture.mtp_num_layers else [LM_LOSS]
        total = torch.zeros(len(kinds) + 2 * sources, dtype=torch.float64, device=self.where)
        # Tensor- and context-parallel ranks all have the loss of their micro batches.
        if losses and parallel_state.get_tensor_model_parallel_rank() + parallel_state.get_context_parallel_rank() == 0:
            found = [torch.stack([entry.get(kind, entry[LM_LOSS]) for entry in losses]).double().mean() for kind in kinds]
            total[: len(kinds)] += torch.stack(found) / self.run_config.parallelism.data
        if losses and sources and parallel_state.get_tensor_model_parallel_rank() == 0:
            total[len(kinds) :] += self._source_sums(losses, sources)
        if self.run_config.parallelism.world_size > 1:
            torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def _source_sums(losses: list[dict[str, torch.Tensor]], sources: int) -> torch.Tensor:
        """float64 [2 * sources] of this rank's tokens: the sum of the losses of each dataset, then how many tokens it has."""
        numbers, sums = (torch.cat(each, dim=-1) for each in zip(*(entry[SOURCE_SUMS] for entry in losses), strict=True))
        found = torch.zeros(2, sources, dtype=torch.float64, device=sums.device)
        return found.index_add_(1, numbers, sums.double()).flatten()


def forward_step(batches: Iterator[Batch], chunk: Chunk, keeps_samples: bool = False) -> tuple[torch.Tensor, Any]:
    """megatron-core's callback: one micro batch through this stage, and the function that turns the output into a loss."""
    output, loss_of = _forward(batches, chunk)
    return output, partial(_with_sample_sums, loss_of) if keeps_samples else loss_of


def _forward(batches: Iterator[Batch], chunk: Chunk) -> tuple[torch.Tensor, Any]:
    batch = next(batches)
    documents = batch.get("documents")
    tokens, positions, labels, mask = (_own_part(batch[key]) for key in ("tokens", "position_ids", "labels", "loss_mask"))
    weight, sources = batch.get("weight"), batch.get("sources")
    model = build_gpt.unwrapped(chunk) if isinstance(chunk, DistributedDataParallel) else None
    if model is None or not hasattr(model, "mtp") or not chunk.training:
        return chunk(tokens, positions, documents, labels=labels), partial(mean_loss, mask, weight, sources)
    layers = model.config.mtp_num_layers or 0
    numbers = None if documents is None else document_numbers(documents, batch["tokens"].shape[1])
    predicted = further(batch["labels"], batch["loss_mask"], numbers, layers, _own_part, weight)
    output = chunk(tokens, positions, documents, labels=labels, further=predicted)
    return output, partial(_with_prediction_losses, mask, weight, sources, model)


def _with_sample_sums(loss_of: Any, losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss, reported = loss_of(losses)
    mask = loss_of.args[0]
    return loss, reported | {SAMPLE_SUMS: torch.stack(((losses.detach().float() * mask).sum(1), mask.sum(1).float()))}


def _with_prediction_losses(
    mask: torch.Tensor,
    weight: torch.Tensor | None,
    sources: torch.Tensor | None,
    model: Decoder,
    losses: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, Any]]:
    loss, reported = mean_loss(mask, weight, sources, losses)
    return loss, reported | {MTP_LOSS: torch.stack(list(model.prediction_losses)).mean()}


def _own_part(tensor: torch.Tensor) -> torch.Tensor:
    """The tokens of this context-parallel rank, of all samples [b, s]."""
    ranks = parallel_state.get_context_parallel_world_size()
    return tensor if ranks == 1 else sequence_share(tensor, 1, parallel_state.get_context_parallel_rank(), ranks)


def mean_loss(
    mask: torch.Tensor, weight: torch.Tensor | None, sources: torch.Tensor | None, losses: torch.Tensor
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The mean over the tokens that count, times the micro batch's `weight`; `mask` and `losses` are [b, s].

    With context parallelism the mean is over all its ranks. What is returned for the backward pass is then this rank's share of
    it; the schedule multiplies it by the number of these ranks, because gradients are averaged over them.
    """
    total, count = (losses.float() * mask).sum(), mask.sum()
    if weight is not None:
        total = total * weight
    reported = torch.stack((total.detach(), count))
    if parallel_state.get_context_parallel_world_size() > 1:
        torch.distributed.all_reduce(reported, group=parallel_state.get_context_parallel_group())
    whole_total, whole_count = reported[0], reported[1].clamp(min=1)
    found: dict[str, Any] = {LM_LOSS: whole_total / whole_count}
    if sources is not None:
        counted = losses.detach().float() * mask
        found[SOURCE_SUMS] = sources, torch.stack((counted.sum(1), mask.expand_as(losses).sum(1)))
    return total / whole_count, found
