"""Build training, validation and test samples from a run's datasets, with Megatron-LM's sizes, weights and rounding.

Rank 0 makes the sample indices once for all ranks and later runs. If other nodes do not see them (a cache on local disks), the
first rank on a node makes them.
"""

import dataclasses
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from lt_shared.contracts.manifest import Dataset
from lt_shared.data.sample_order import sample_index
from lt_shared.data.sample_order.packed import PackedPart
from lt_shared.data.sample_order.parts import Blend, DatasetPart, ExtendedPart, Source, StreamPart, StreamSource, part_of
from lt_shared.data.sample_order.phases import PhasedPart, phased
from lt_shared.data.sample_order.samples import Samples, Sequences, Tokens
from lt_shared.data.sample_order.split import split_ranges
from lt_shared.data.sample_order.stream import Stream
from lt_shared.files import storage
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.data import Data
from lt_train.config.settings.data_schedule import Schedule
from lt_train.data import index_cache, remote_datasets
from lt_train.process import agreement

# Python draws this many samples times datasets in 0.6 s. numba takes 4 s of processor time to import and to compile the loop.
INTERPRETED_DRAWS = 500_000

Part = DatasetPart | ExtendedPart | PackedPart | StreamPart | Blend | PhasedPart


class MockSequences:
    """Megatron's mock data: 100,000 sequences that count from 1 to their random length and end with a document's end."""

    COUNT = 100_000
    LONGEST = 4096

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        self.lengths = np.random.default_rng(0).integers(1, self.LONGEST, size=self.COUNT, dtype=np.int32)

    def read(self, numbers: Tokens, start: int, end: int) -> Tokens:
        sequences = [self._sequence(number, length) for number, length in zip(numbers, self.lengths.take(numbers), strict=True)]
        for sequence in sequences:
            sequence[-1] = self.vocab_size - 1
        sequences[-1] = sequences[-1][:end]
        sequences[0] = sequences[0][start:]
        return np.concatenate(sequences)

    def _sequence(self, number: int, length: int) -> Tokens:
        return (np.arange(length) + 1) % self.vocab_size


class RandomSequences(MockSequences):
    """Sequences of the same lengths, with all tokens equally likely, for measurements.

    A model learns to count in ten steps. Gradients near zero switch fewer bits, and a GPU at the limit of its power then runs
    faster than it does in training.
    """

    def _sequence(self, number: int, length: int) -> Tokens:
        return np.random.default_rng(number).integers(self.vocab_size, size=length)


@dataclasses.dataclass(frozen=True)
class SampleOrder:
    """The settings that decide the tokens of a run's samples, and the order of the samples.

    `mock` has the sequences of a run on made-up tokens, None for a run with datasets.
    """

    data: Data
    batches: Batches
    schedule: Schedule
    seed: int
    mock: MockSequences | None

    @classmethod
    def from_config(cls, config: RunConfig) -> Self:
        kind = RandomSequences if config.benchmark else MockSequences
        mock = kind(config.architecture.vocab_size) if config.data.mock else None
        return cls(config.data, config.batches, config.schedule, config.seed, mock)

    def training_samples(self, consumed_samples: int, iteration: int) -> int:
        """Return the number of samples to shuffle for a run at `iteration` that has consumed `consumed_samples`.

        A run that started with another batch size may need more samples than its steps take at the current batch size.
        """
        batches = self.batches
        remaining_samples = batches.samples_between(consumed_samples, max(0, batches.train_iters - iteration))
        return max(batches.requested_samples or 0, batches.train_samples, consumed_samples + remaining_samples)


@dataclasses.dataclass(frozen=True)
class RunSamples:
    """The samples of a run's parts, None for a part without data or evaluations. `validation` is keyed by set name.

    A set without a name is called "". `streams` is keyed by dataset number.
    """

    training: Samples | None
    validation: dict[str, Samples]
    test: Samples | None
    streams: dict[int, Stream]


def cache_directory(data: Data, run: str | None) -> str | None:
    """Return the directory of sample indices: as requested, else in the directory `run` if it is mounted."""
    if data.cache_path or run is None or storage.is_remote(run):
        return data.cache_path
    return os.path.join(run, "data-cache")


def build(order: SampleOrder, cache: str | None, lengths: Sequence[int] = ()) -> RunSamples:
    """Build the samples; all ranks call this together.

    `lengths` are as for `extended_lengths`; none means the samples of the run's steps. The directory `cache` keeps the indices;
    without it each node builds them again for each run. Raises BadData.
    """
    streams = _streams(order)
    parts = _parts(order, lengths or (order.batches.train_samples,), streams)
    indices = [index for part in parts if part is not None for index in part.indices]
    directory = Path(cache or agreement.from_first_rank(tempfile.mkdtemp(prefix="lt-train-") if _rank() == 0 else None))
    names: list[str] = agreement.from_first_rank([index.name() for index in indices] if _rank() == 0 else None)
    try:
        # Rank 0 makes all indices first. The first ranks of other nodes then make the indices that they do not see.
        for is_turn in (_rank() == 0, _is_first_on_node()):
            if is_turn:
                for index, name in zip(indices, names, strict=True):
                    sample_index.check(index_cache.make_once(directory, name, index.make))
            _wait_for_all()
        paths = dict(zip(indices, (index_cache.location(directory, name) for name in names), strict=True))
        training, test, *validation = [None if part is None else part.load(paths) for part in parts]
        _wait_for_all()
    finally:
        if cache is None and _is_first_on_node():
            shutil.rmtree(directory, ignore_errors=True)
    samples_by_set = zip(order.data.validation_sets, validation, strict=True)
    return RunSamples(training, {name: samples for name, samples in samples_by_set if samples is not None}, test, streams)


def extended_lengths(order: SampleOrder, lengths: Sequence[int], samples: int) -> tuple[int, ...]:
    """Add the length `samples` to the successive `lengths` of a run in samples, if the run needs more epochs than before.

    Megatron-LM shuffles all epochs of a dataset together, or all but the last one, so that a longer run has another order from
    its first sample on. Here the samples of the earlier length keep their order. A shorter run keeps the longer run's order.
    """
    if not lengths or order.schedule:
        return (samples,)
    if samples <= lengths[-1]:
        return tuple(lengths)
    streams = _streams(order)
    merged, appended = (*lengths[:-1], samples), (*lengths, samples)
    orders = [_order_of(_parts(order, candidate, streams)[0]) for candidate in (merged, appended)]
    return merged if orders[0] == orders[1] else appended


def _order_of(part: Part | None) -> tuple[Any, ...]:
    # The parts of a schedule are phased, and follow from the schedule alone.
    return () if part is None or isinstance(part, PhasedPart) else part.order


def _streams(order: SampleOrder) -> dict[int, Stream]:
    settings = order.data.streaming
    places = settings.lists if settings else ()
    numbers = [number for number, place in enumerate(places) if place is not None]
    return {number: Stream(order.seed, settings.window_tokens) for number in numbers if settings}


def _parts(order: SampleOrder, lengths: Sequence[int], streams: Mapping[int, Stream]) -> list[Part | None]:
    """Build the training set, the test set, and every validation set. A dataset is opened once."""
    data, batches = order.data, order.batches
    evaluated = data.eval_iters * batches.global_batch_size
    sets = data.validation_sets
    requested_parts: list[tuple[int, tuple[Dataset, ...], Sequence[int]]] = [
        (0, data.datasets, lengths),
        (2, data.datasets if data.split else data.test_datasets, (evaluated,)),
        *((1, datasets, (evaluated,)) for datasets in sets.values()),
    ]
    opened: dict[str, Sequences] = {}
    for dataset in data.all_datasets:
        opened.setdefault(dataset.prefix, remote_datasets.open_sequences(data, dataset))
    parts: list[Part | None] = []
    for number, datasets, samples in requested_parts:
        set_sources = [
            (dataset.prefix, opened[dataset.prefix], dataset.weight, dataset.packed is not None) for dataset in datasets
        ]
        if order.mock is not None:
            set_sources = [("mock data", order.mock, 1.0, False)]
        sources = [
            Source(origin, sequences, _share(data.split, number, len(sequences.lengths)), weight, is_packed)
            for origin, sequences, weight, is_packed in set_sources
        ]
        if not samples[-1] or not sources or not all(source.share for source in sources):
            parts.append(None)
        else:
            drawn = _with_streams(sources, {} if number else streams)
            parts.append(part_of(drawn, samples, batches.seq_length, order.seed, _draw_blend))
        if order.schedule and not number:
            drawn = _with_streams(sources, streams)
            parts[-1] = phased(drawn, order.schedule.sample_phases(batches), order.seed, _draw_blend)
    return parts


def _with_streams(sources: Sequence[Source], streams: Mapping[int, Stream]) -> list[Source | StreamSource]:
    """Return the training sources. The first shard of a stream represents the whole stream."""
    return [
        StreamSource(streams[number], source.weight) if number in streams else source for number, source in enumerate(sources)
    ]


def _share(split: str | None, number: int, sequences: int) -> range:
    return range(sequences) if split is None else split_ranges(split, sequences)[number]


def _draw_blend(weights: Any, datasets: Any, numbers: Any) -> None:
    """Fill [N] `datasets` and `numbers` as `sample_index.draw_blend` does, with compiled code if the blend is large."""
    is_large = len(weights) * len(datasets) > INTERPRETED_DRAWS
    draw = _compiled_blend() if is_large else sample_index.draw_blend
    draw(weights, datasets, numbers)


@functools.cache
def _compiled_blend() -> Callable[..., None]:
    """Compile `sample_index.draw_blend` with numba, which lt-train imports only here."""
    import numba

    compiled: Callable[..., None] = numba.njit(nogil=True)(sample_index.draw_blend)
    return compiled


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def _is_first_on_node() -> bool:
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def _wait_for_all() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
