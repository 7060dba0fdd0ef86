"""Read this rank's micro batches ahead, by threads.

Steps take consecutive ranges of samples. Within a step, the data-parallel ranks take contiguous micro batches in turn, as in
Megatron's sampler. So a step has the same samples with every data-parallel size, and resuming needs only the number of consumed
samples.
"""

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from megatron.core import parallel_state
from torch import Tensor

from lt_shared.data.indexed_dataset import RemoteBin
from lt_shared.data.sample_order.samples import UNCOUNTED, Samples
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.data import Data
from lt_train.config.settings.skipping import Skipping
from lt_train.data import micro_batches
from lt_train.data.batch import Batch
from lt_train.data.micro_batches import MicroBatch
from lt_train.process import device

# Micro batches that a thread reads ahead of the training step.
AHEAD = 4
# Threads for data on a store, because they wait most of the time. 64 micro batches ahead hide a second without answers.
STORE_READERS = 16


def _always_ready(end: int) -> bool:
    return True


class Loader:
    """Makes the micro batches of this rank on `device`. `batches` has the sample length."""

    def __init__(self, data: Data, batches: Batches, vocab_size: int, device: torch.device):
        self.data = data
        self.batch_sizes = batches
        self.eod = vocab_size - 1 if data.mock else data.eod
        self.device = device

    def training(
        self,
        samples: Samples,
        skipping: Skipping,
        consumed_samples: int,
        iteration: int,
        last_step: int,
        is_ready: Callable[[int], bool] = _always_ready,
    ) -> Iterator[Batch]:
        """Yield this rank's micro batches for the steps after `iteration` up to `last_step`, without skipped samples.

        Only available samples are read ahead: `is_ready` says whether the samples before a number are available.
        """
        end = consumed_samples + self.batch_sizes.samples_between(consumed_samples, last_step - iteration)
        rank, ranks = _place()
        planned = micro_batches.plan(
            self.batch_sizes, skipping, rank, ranks, min(len(samples), end), consumed_samples, iteration + 1
        )
        return self.batches(samples, planned, True, is_ready)

    def evaluating(self, samples: Samples) -> Iterator[Batch]:
        """Yield this rank's micro batches of `samples` from the first on."""
        planned = micro_batches.unskipped(self.batch_sizes.micro_batch_size, *_place(), range(len(samples)))
        return self.batches(samples, planned)

    def batches(
        self,
        samples: Samples,
        planned: Iterable[MicroBatch],
        tells_sources: bool = False,
        is_ready: Callable[[int], bool] = _always_ready,
    ) -> Iterator[Batch]:
        """Read the `planned` micro batches; with `tells_sources`, micro batches of a blend have `sources`."""
        data, eod, target_device = self.data, self.eod, self.device
        shape = (self.batch_sizes.micro_batch_size, self.batch_sizes.seq_length)
        positions = torch.arange(shape[1], device=target_device).expand(shape)
        counted = torch.ones(shape, device=target_device)
        by_source = len(data.datasets) > 1 and tells_sources
        is_masked = data.has_loss_mask
        described, to_read = itertools.tee(planned)
        threads = data.num_workers
        if threads and any(RemoteBin.of(dataset.prefix) for dataset in data.all_datasets):
            threads = max(threads, STORE_READERS)
        texts = read_ahead(samples, (next_batch.numbers for next_batch in to_read), threads, target_device, is_ready)
        for micro_batch, text in zip(described, texts, strict=True):
            on_device = text.to(target_device, non_blocking=True)
            uncounted = padding = None
            if is_masked:
                uncounted = on_device >= UNCOUNTED
                on_device = torch.where(uncounted, on_device - UNCOUNTED, on_device)
            if data.is_packed:
                assert eod is not None
                padding = on_device < 0
                on_device = on_device.masked_fill(padding, eod)
            tokens = on_device[:, :-1].contiguous()
            batch: Batch = {
                "tokens": tokens,
                "labels": on_device[:, 1:].contiguous(),
                "position_ids": positions,
                "loss_mask": counted,
            }
            if data.minds_documents:
                assert eod is not None
                ends = tokens.eq(eod)
                if data.reset_attention_mask:
                    tokens_on_host = text[:, :-1] & (UNCOUNTED - 1) if is_masked else text[:, :-1]
                    batch["documents"] = document_borders(tokens_on_host.eq(eod)).to(target_device, non_blocking=True)
                if data.reset_position_ids:
                    batch["position_ids"] = positions_in_documents(ends)
                if data.eod_mask_loss:
                    batch["loss_mask"] = (~ends).float()
            if uncounted is not None:
                batch["loss_mask"] = batch["loss_mask"] * (~uncounted[:, 1:]).float()
            if padding is not None:
                batch["loss_mask"] = batch["loss_mask"] * (~padding[:, 1:]).float()
            if micro_batch.row_counts is not None:
                row_mask = torch.tensor(micro_batch.row_counts, dtype=torch.float32).to(target_device, non_blocking=True)
                batch["loss_mask"] = batch["loss_mask"] * row_mask[:, None]
                batch["weight"] = torch.tensor(micro_batch.weight).to(target_device, non_blocking=True)
            if by_source:
                batch["sources"] = torch.tensor(list(map(samples.dataset, micro_batch.numbers))).to(
                    target_device, non_blocking=True
                )
            yield batch


def _place() -> tuple[int, int]:
    """Return the data-parallel rank and size."""
    return parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()


def document_borders(ends: Tensor) -> Tensor:
    """Return int32 [b, n + 1]: the first positions of a sample's documents, then the end. `ends` [b, s] marks last tokens.

    A sample with fewer than n documents repeats its end. Padding belongs to the last document. `ends` is on the host, so that
    kernels can be launched for n documents, a power of two, without waiting for the GPU to count them.
    """
    length = ends.shape[1]
    begins = [sample.nonzero().flatten() + 1 for sample in ends]
    count = 1 << max(map(len, begins)).bit_length()
    borders = torch.full((len(ends), count + 1), length, dtype=torch.int32)
    borders[:, 0] = 0
    for row, positions in zip(borders, begins, strict=True):
        row[1 : 1 + len(positions)] = positions
    return borders


def positions_in_documents(ends: Tensor) -> Tensor:
    """Return each token's position in the part of its document that the sample has; int64 like `ends` [b, s]."""
    positions = torch.arange(ends.shape[1], device=ends.device).expand(ends.shape)
    begins = torch.zeros_like(positions)
    begins[:, 1:] = torch.where(ends[:, :-1], positions[:, 1:], 0)
    return positions - begins.cummax(1).values


def read_ahead(
    samples: Samples,
    planned: Iterable[Sequence[int]],
    threads: int,
    target_device: torch.device,
    is_ready: Callable[[int], bool] = _always_ready,
) -> Iterator[Tensor]:
    """Yield int64 [b, s + 1] tokens of the `planned` micro batches, in their order.

    `threads` threads read ahead. Without threads, a micro batch is read when it is due.
    """

    def read(numbers: Sequence[int]) -> Tensor:
        rows = [samples[number] for number in numbers]
        text = torch.empty((len(rows), len(rows[0])), dtype=torch.int64, pin_memory=target_device.type == device.CUDA)
        for target, row in zip(text.numpy(), rows, strict=True):
            target[:] = row
        return text

    if not threads:
        yield from map(read, planned)
        return
    pool = ThreadPoolExecutor(threads, "samples", initializer=device.use, initargs=(target_device,))
    pending: collections.deque[Future[Tensor]] = collections.deque()
    try:
        for numbers in planned:
            while pending and not is_ready(max(numbers) + 1):
                yield pending.popleft().result()
            pending.append(pool.submit(read, numbers))
            if len(pending) > threads * AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
