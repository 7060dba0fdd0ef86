"""Run the micro batches of a global batch forward and backward through the stages of this rank, and reduce their losses."""

import itertools
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads

from lt_train.config.settings.batches import Batches
from lt_train.config.settings.parallelism import Parallelism
from lt_train.data.batch import Batch
from lt_train.models.chunks import unwrap
from lt_train.models.decoder import Decoder
from lt_train.models.mixers.core_attention import document_numbers, sequence_share
from lt_train.models.multi_token_prediction import prediction_targets
from lt_train.ops import wgrad_accumulation
from lt_train.parallel.ddp import Chunk, gathered_weights
from lt_train.process.reading import Reading
from lt_train.train import pipeline_schedule

LM_LOSS, MTP_LOSS = "lm loss", "mtp loss"
# By sample: the number of its dataset in the blend, the sum of its token losses, and its token count.
SOURCE_SUMS = "source sums"
# By sample of a micro batch: the sum of its token losses, and the number of its counted tokens: [2, b].
SAMPLE_SUMS = "sample sums"

# The last pipeline stage reports a dict for each micro batch, with the keys above. The other stages report nothing.
Losses = list[dict[str, torch.Tensor]]


class ForwardBackward:
    """Run global batches through the model `chunks` of this rank, with a schedule of megatron-core or of `pipeline_schedule`.

    `sources` is the number of datasets with separate losses, 0 for a single loss. `keeps_samples` reports a loss per sample. With
    `averages_tokens`, the loss is the mean over the counted tokens of the global batch, instead of over the micro batches' means.
    """

    def __init__(
        self,
        batches: Batches,
        parallelism: Parallelism,
        chunks: list[Chunk],
        device: torch.device,
        sources: int = 0,
        keeps_samples: bool = False,
        averages_tokens: bool = False,
    ):
        self.batches = batches
        self.parallelism = parallelism
        self.chunks = chunks
        self.device = device
        self.sources = sources
        self.keeps_samples = keeps_samples
        self.averages_tokens = averages_tokens
        self.run_schedule = pipeline_schedule.choose(parallelism)
        # The schedule enters `no_sync` until the last micro batch, then calls `finalize_model_grads` to finish the reduction.
        config = unwrap(chunks[0]).config
        without_sync = [chunk.no_sync for chunk in chunks]
        config.no_sync_func = without_sync if len(chunks) > 1 else without_sync[0]
        config.finalize_model_grads_func = partial(wgrad_accumulation.clear_and_finalize, finalize=finalize_model_grads)
        has_predictions = bool(config.mtp_num_layers)
        self.loss_kinds = [LM_LOSS, MTP_LOSS] if has_predictions else [LM_LOSS]

    def micro_batches(self, samples: int) -> int:
        """Return the number of micro batches per data-parallel rank for a global batch of `samples`."""
        return samples // (self.batches.micro_batch_size * self.parallelism.data)

    def run(self, batches: Iterator[Batch], samples: int, forward_only: bool) -> Losses:
        """Run a global batch of `samples` through the pipeline in micro batches. Return their losses."""
        chunks, count = self.chunks, self.micro_batches(samples)
        step: Iterator[Batch] = itertools.islice(batches, count)
        if self.averages_tokens:
            step = self._weighed_by_tokens(deque(step))
        # Every model chunk of an interleaved pipeline reads all micro batches.
        readers = list(itertools.tee(step, len(chunks)))
        losses: Losses = self.run_schedule(
            forward_step_func=partial(forward_step, keeps_samples=self.keeps_samples),
            data_iterator=readers if len(chunks) > 1 else readers[0],
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=count,
            seq_length=self.batches.seq_length,
            micro_batch_size=self.batches.micro_batch_size,
            forward_only=forward_only,
        )
        return losses

    def _weighed_by_tokens(self, step: deque[Batch]) -> Iterator[Batch]:
        """Yield the micro batches of a global batch, weighed by their counted tokens: the weights' mean over all ranks is 1.

        The count is known before the first forward pass, so schedules, reductions and loss scales stay as they are. megatron-core
        divides the summed gradients by the count afterwards (--calculate-per-token-loss), which needs a second pass over them.
        """
        counts = torch.stack([batch["loss_mask"].sum() for batch in step]).double()
        total = counts.sum()
        if self.parallelism.data > 1:
            torch.distributed.all_reduce(total, group=parallel_state.get_data_parallel_group())
        weights = (counts * (len(counts) * self.parallelism.data) / total.clamp(min=1)).float()
        for weight in weights:
            yield {**step.popleft(), "weight": weight}

    @torch.no_grad()
    def evaluate(self, batches: Iterator[Batch], global_batches: int) -> float:
        """Return the mean loss over `global_batches` batches, without gradients."""
        for chunk in self.chunks:
            chunk.eval()
        size = self.batches.global_batch_size
        with gathered_weights(self.chunks):
            means = (self.mean(self.run(batches, size, forward_only=True)) for _ in range(global_batches))
            losses = [float(Reading(mean).values()[0]) for mean in means]
        for chunk in self.chunks:
            chunk.train()
        return sum(losses) / len(losses)

    @torch.no_grad()
    def losses_of_samples(self, batches: Iterator[Batch], samples: int) -> list[float]:
        """Return the samples' losses of the next global batch, without gradients."""
        losses: list[float] = self.sample_losses(self.run(batches, samples, forward_only=True), samples).tolist()
        return losses

    def sample_losses(self, losses: Losses, samples: int) -> torch.Tensor:
        """Return the samples' mean losses in a global batch on every rank, as float64 [samples].

        A sample without counted tokens has NaN. A context-parallel rank contributes the sums over its part of every sample.
        """
        sums = torch.zeros((2, samples), dtype=torch.float64, device=self.device)
        if losses and parallel_state.get_tensor_model_parallel_rank() == 0:
            local_sums = torch.stack([entry[SAMPLE_SUMS] for entry in losses], 1).double()
            sums_by_rank = sums.view(2, len(losses), -1, local_sums.shape[-1])
            sums_by_rank[:, :, parallel_state.get_data_parallel_rank()] = local_sums
        if self.parallelism.world_size > 1:
            torch.distributed.all_reduce(sums)
        return sums[0] / sums[1]

    def mean(self, losses: Losses, sources: int = 0) -> torch.Tensor:
        """Return the mean loss over all micro batches and data-parallel ranks on every rank, as a float64 tensor.

        Its first element is the language model loss. With multi-token prediction a second element follows, then the sums of the
        `sources`.
        """
        kinds = self.loss_kinds
        total = torch.zeros(len(kinds) + 2 * sources, dtype=torch.float64, device=self.device)
        # All tensor- and context-parallel ranks of a micro batch have the same loss: only the first adds it.
        if losses and parallel_state.get_tensor_model_parallel_rank() + parallel_state.get_context_parallel_rank() == 0:
            means = [torch.stack([entry.get(kind, entry[LM_LOSS]) for entry in losses]).double().mean() for kind in kinds]
            total[: len(kinds)] += torch.stack(means) / self.parallelism.data
        if losses and sources and parallel_state.get_tensor_model_parallel_rank() == 0:
            total[len(kinds) :] += _source_sums(losses, sources)
        if self.parallelism.world_size > 1:
            torch.distributed.all_reduce(total)
        return total


def _source_sums(losses: Losses, sources: int) -> torch.Tensor:
    """Return this rank's float64 [2 * sources]: the sums of token losses by dataset, then the token counts by dataset."""
    numbers, sums = (torch.cat(tensors, dim=-1) for tensors in zip(*(entry[SOURCE_SUMS] for entry in losses), strict=True))
    sums_by_source = torch.zeros(2, sources, dtype=torch.float64, device=sums.device)
    return sums_by_source.index_add_(1, numbers, sums.double()).flatten()


def forward_step(batches: Iterator[Batch], chunk: Chunk, keeps_samples: bool = False) -> tuple[torch.Tensor, Any]:
    """Run a micro batch through this stage, as megatron-core's schedules call it.

    Return the output and the function that turns the output into a loss.
    """
    output, loss_of = _forward(batches, chunk)
    return output, partial(_with_sample_sums, loss_of) if keeps_samples else loss_of


def _forward(batches: Iterator[Batch], chunk: Chunk) -> tuple[torch.Tensor, Any]:
    batch = next(batches)
    documents = batch.get("documents")
    tokens, positions = _local_tokens(batch["tokens"]), _local_tokens(batch["position_ids"])
    labels, mask = _local_tokens(batch["labels"]), _local_tokens(batch["loss_mask"])
    weight, sources = batch.get("weight"), batch.get("sources")
    model = unwrap(chunk) if isinstance(chunk, DistributedDataParallel) else None
    if model is None or not hasattr(model, "mtp") or not chunk.training:
        return chunk(tokens, positions, documents, labels=labels), partial(mean_loss, mask, weight, sources)
    layers = model.config.mtp_num_layers or 0
    numbers = None if documents is None else document_numbers(documents, batch["tokens"].shape[1])
    predicted = prediction_targets(batch["labels"], batch["loss_mask"], numbers, layers, _local_tokens, weight)
    output = chunk(tokens, positions, documents, labels=labels, targets=predicted)
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


def _local_tokens(tensor: torch.Tensor) -> torch.Tensor:
    """Return the columns of `tensor` [b, s] that belong to this context-parallel rank."""
    ranks = parallel_state.get_context_parallel_world_size()
    return tensor if ranks == 1 else sequence_share(tensor, 1, parallel_state.get_context_parallel_rank(), ranks)


def mean_loss(
    mask: torch.Tensor, weight: torch.Tensor | None, sources: torch.Tensor | None, losses: torch.Tensor
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return the mean loss over the counted tokens, times the `weight` of the micro batch. `mask` and `losses` are [b, s].

    With context parallelism, the reported mean is over all context-parallel ranks. The loss for the backward pass is this rank's
    part of the mean; the schedule multiplies it by the number of context-parallel ranks, because gradients are averaged over
    them.
    """
    total, count = (losses.float() * mask).sum(), mask.sum()
    if weight is not None:
        total = total * weight
    reported = torch.stack((total.detach(), count))
    if parallel_state.get_context_parallel_world_size() > 1:
        torch.distributed.all_reduce(reported, group=parallel_state.get_context_parallel_group())
    whole_total, whole_count = reported[0], reported[1].clamp(min=1)
    reports: dict[str, Any] = {LM_LOSS: whole_total / whole_count}
    if sources is not None:
        counted = losses.detach().float() * mask
        reports[SOURCE_SUMS] = sources, torch.stack((counted.sum(1), mask.expand_as(losses).sum(1)))
    return total / whole_count, reports
