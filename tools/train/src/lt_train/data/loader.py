"""The micro batches of this rank, read ahead by threads.

Sample `i` of the run goes to the step that begins at or before it; within a micro batch across the data-parallel ranks each rank
takes a contiguous part, as Megatron's sampler does. A step's samples so are the same for every data-parallel size, and resuming
needs no more than the number of consumed samples.
"""

import collections
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from megatron.core import parallel_state
from torch import Tensor

from lt_shared import storage
from lt_shared.sample_order.samples import Samples
from lt_train.config.run_config import RunConfig
from lt_train.data import blended_dataset
from lt_train.runtime import device

Batch = dict[str, Tensor]

# Micro batches that each thread may be ahead of the training step.
AHEAD = 4


def build(config: RunConfig, consumed_samples: int = 0, iteration: int = 0) -> list[Samples | None]:
    """Training, validation and test samples, as `blended_dataset.build`, for a run at `iteration` that has consumed so many."""
    return blended_dataset.build(config, cache_directory(config), training_samples(config, consumed_samples, iteration))


def training_samples(config: RunConfig, consumed_samples: int, iteration: int) -> int:
    """How many samples are put into an order for a run at `iteration` that has consumed so many.

    One that was started with another batch size may need more than its steps would have taken at the present one.
    """
    batches = config.batches
    left = batches.samples_between(consumed_samples, max(0, batches.train_iters - iteration))
    return max(batches.train_samples, consumed_samples + left)


def cache_directory(config: RunConfig) -> str | None:
    """Where sample indices are kept: as asked, else in the run's directory if it is mounted."""
    save = config.checkpointing.directory
    if config.data.cache_path or save is None or storage.is_remote(save):
        return config.data.cache_path
    return os.path.join(save, "data-cache")


def batches(samples: Samples, config: RunConfig, where: torch.device, first_sample: int) -> Iterator[Batch]:
    """This rank's micro batches on the device `where`, from the run's `first_sample` on.

    int64 `tokens`, `labels` and `position_ids`, float `loss_mask`, each [b, s]; with --reset-attention-mask also int32
    `documents` [b, s], which counts the documents of each sample.
    """
    size = config.batches.micro_batch_size
    start = first_sample + parallel_state.get_data_parallel_rank() * size
    starts = range(start, len(samples) - size + 1, size * parallel_state.get_data_parallel_world_size())
    eod = config.architecture.vocab_size - 1 if config.data.mock else config.data.eod
    shape = (size, config.batches.seq_length)
    positions = torch.arange(shape[1], device=where).expand(shape)
    counted = torch.ones(shape, device=where)
    for text in read_ahead(samples, starts, size, config.data.num_workers, where):
        on_device = text.to(where, non_blocking=True)
        tokens = on_device[:, :-1].contiguous()
        batch = {"tokens": tokens, "labels": on_device[:, 1:].contiguous(), "position_ids": positions, "loss_mask": counted}
        if config.data.minds_documents:
            assert eod is not None
            ends = tokens.eq(eod)
            if config.data.reset_attention_mask:
                batch["documents"] = document_numbers(ends)
            if config.data.reset_position_ids:
                batch["position_ids"] = positions_in_documents(ends)
            if config.data.eod_mask_loss:
                batch["loss_mask"] = (~ends).float()
        yield batch


def document_numbers(ends: Tensor) -> Tensor:
    """The number of each token's document within its sample, int32 like `ends` [b, s], which marks the last token of each."""
    return (ends.cumsum(1) - ends.long()).int()


def positions_in_documents(ends: Tensor) -> Tensor:
    """Each token's position in its document, or in the part of it that the sample has; int64 like `ends` [b, s]."""
    positions = torch.arange(ends.shape[1], device=ends.device).expand(ends.shape)
    begins = torch.zeros_like(positions)
    begins[:, 1:] = torch.where(ends[:, :-1], positions[:, 1:], 0)
    return positions - begins.cummax(1).values


def read_ahead(samples: Samples, starts: range, size: int, threads: int, where: torch.device) -> Iterator[Tensor]:
    """int64 [size, s + 1] for every start, in their order, read by `threads` threads or, with none, when each is due."""

    def read(start: int) -> Tensor:
        rows = [samples[number] for number in range(start, start + size)]
        text = torch.empty((size, len(rows[0])), dtype=torch.int64, pin_memory=where.type == device.CUDA)
        for target, row in zip(text.numpy(), rows, strict=True):
            target[:] = row
        return text

    if not threads:
        yield from map(read, starts)
        return
    pool = ThreadPoolExecutor(threads, "samples", initializer=device.use, initargs=(where,))
    pending: collections.deque[Future[Tensor]] = collections.deque()
    try:
        for start in starts:
            pending.append(pool.submit(read, start))
            if len(pending) > threads * AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
