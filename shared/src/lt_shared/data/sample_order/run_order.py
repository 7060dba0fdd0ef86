"""Reconstruct the samples of a run's steps from the data order that the run recorded.

`SAVE/data-order.jsonl` has a line for each attempt of a run, written before its first step: its first step and sample, the
arguments that decide the order of the samples under Megatron's names, the datasets with their weights, and the command. If a run
was continued with other arguments, a step belongs to the latest attempt that began before the step.
"""

import dataclasses
import itertools
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from lt_shared.console import BadData, NoInput
from lt_shared.data import indexed_dataset
from lt_shared.data.sample_order import sample_index, shard_list
from lt_shared.data.sample_order.batch_sizes import BatchSizes, PhaseSize, RampUp, ScheduledSize
from lt_shared.data.sample_order.parts import Source, StreamSource, part_of
from lt_shared.data.sample_order.phases import Phase, phased
from lt_shared.data.sample_order.samples import Samples, StoredSequences
from lt_shared.data.sample_order.shard_list import ShardList
from lt_shared.data.sample_order.split import split_ranges
from lt_shared.data.sample_order.stream import Shard, Stream
from lt_shared.files import storage, strict_json

FILE = "data-order.jsonl"
VERSION = 1
# Of a run that has become longer: a reader that knows version 1 alone would take another order for its order.
EXTENDED_VERSION = 2
INDEX_CACHE = "data-cache"


@dataclasses.dataclass(frozen=True)
class OrderedDataset:
    """A dataset of the blend; `version` is what tells whether it was replaced since: sizes of its files in bytes, and CRC-32.

    Of a stream it is the first shard, and `shard_list` the file that lists all. `packed` is as in `manifest.Dataset`.
    """

    prefix: str
    weight: float = 1.0
    version: Mapping[str, int] = dataclasses.field(default_factory=dict)
    packed: int | None = None
    shard_list: str | None = None

    @property
    def shards(self) -> list[str]:
        """The prefixes of a stream's shards so far, or the prefix of a dataset."""
        return [self.prefix] if self.shard_list is None else [shard.prefix for shard in _listed(self.shard_list).shards]


@dataclasses.dataclass(frozen=True)
class AttemptOrder:
    """One attempt: it goes on after `step` steps that took `consumed_samples`, and `samples` were put into an order.

    `earlier_samples` are the numbers before, if the run has become longer and needs more epochs. `phases` come from the data
    schedule; `window_tokens` is the shuffle window of streams. `data_cache_path` is where it kept sample indices, `command` the
    arguments of lt-train. `batch_size_schedule` has the first sample and the size of each stretch of steps, empty without
    --step-batch-size-schedule.
    """

    step: int
    consumed_samples: int
    samples: int
    seed: int
    seq_length: int
    global_batch_size: int
    train_iters: int
    datasets: tuple[OrderedDataset, ...]
    split: str | None = None
    rampup_batch_size: tuple[int, int, int] | None = None
    data_cache_path: str | None = None
    command: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()
    window_tokens: int | None = None
    batch_size_schedule: tuple[tuple[int, int], ...] = ()
    earlier_samples: tuple[int, ...] = ()

    def to_record(self) -> dict[str, Any]:
        record = {"v": EXTENDED_VERSION, "kind": "data_order", **dataclasses.asdict(self)}
        return record if self.earlier_samples else {**record, "v": VERSION}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Build an attempt from its record. Raises ValueError, KeyError or TypeError if the record is malformed."""
        if record["v"] not in (VERSION, EXTENDED_VERSION):
            raise ValueError(f"version {record['v']}, known are {VERSION} and {EXTENDED_VERSION}")
        # Attempts of earlier versions have neither.
        record = {"earlier_samples": (), "batch_size_schedule": (), **record}
        fields = {field.name: record[field.name] for field in dataclasses.fields(cls)}
        for name in ("step", "consumed_samples", "samples", "seed", "seq_length", "global_batch_size", "train_iters"):
            if type(fields[name]) is not int or fields[name] < 0:
                raise ValueError(f"{name} is {fields[name]!r:.40}, expected a whole number")
        ramp = fields["rampup_batch_size"]
        return cls(
            **fields
            | {
                "datasets": tuple(OrderedDataset(**dataset) for dataset in fields["datasets"]),
                "rampup_batch_size": None if ramp is None else (ramp[0], ramp[1], ramp[2]),
                "phases": tuple(Phase(**{**phase, "weights": tuple(phase["weights"])}) for phase in fields["phases"]),
                "command": tuple(map(str, fields["command"])),
                "earlier_samples": tuple(map(int, fields["earlier_samples"])),
                "batch_size_schedule": tuple((int(begin), int(size)) for begin, size in fields["batch_size_schedule"]),
            }
        )

    @property
    def batch_sizes(self) -> BatchSizes:
        ramp = None if self.rampup_batch_size is None else RampUp(*self.rampup_batch_size)
        begins = itertools.accumulate((phase.samples for phase in self.phases), initial=0)
        phase_sizes = [PhaseSize(begin, phase.global_batch_size) for begin, phase in zip(begins, self.phases, strict=False)]
        return BatchSizes(
            self.global_batch_size,
            ramp,
            tuple(phase_sizes) if any(phase_size.size for phase_size in phase_sizes) else (),
            tuple(itertools.starmap(ScheduledSize, self.batch_size_schedule)),
        )

    def phase_of(self, sample: int) -> int:
        """The number of the phase that a sample of the run is in; 0 without phases."""
        ends = itertools.accumulate(phase.samples for phase in self.phases)
        return sum(end <= sample for end in ends)

    def samples_of(self, first_step: int, last_step: int) -> range:
        """The run's sample numbers, from 0, that steps `first_step` to `last_step`, both from 1, train on."""
        end = self._samples_after(last_step)
        return range(self._samples_after(first_step - 1), end)

    def _samples_after(self, step: int) -> int:
        return self.consumed_samples + self.batch_sizes.samples_between(self.consumed_samples, step - self.step)

    def step_of(self, sample: int) -> int:
        """The step, from 1, that trains on a sample of this attempt."""
        if sample < self.consumed_samples:
            return self.step
        return self.step + self.batch_sizes.steps_between(self.consumed_samples, sample) + 1

    def training_samples(self, run: Path | None = None) -> Samples:
        """The samples in their order; indices of the run's cache are used where they are there, and made where not.

        Without a compiler a blend's takes 0.5 s for a million samples of two datasets.

        Raises NoInput for a dataset that is gone, BadData for one that was replaced and for made-up tokens.
        """
        part = self._part()
        names = {index: index.name() for index in part.indices}
        caches = [path for path in (self.data_cache_path, run and os.path.join(run, INDEX_CACHE)) if path]
        with tempfile.TemporaryDirectory(prefix="sample-order-") as temporary_directory:
            directory_by_index = {
                index: _index_directory(index, name, caches, Path(temporary_directory)) for index, name in names.items()
            }
            samples: Samples = part.load(directory_by_index)
        return samples

    def _stream(self, listed: str) -> Stream:
        """With the shards that there are so far."""
        shards_so_far, stream = _listed(listed), Stream(self.seed, self.window_tokens or 1)
        for number, shard in enumerate(shards_so_far.shards):
            sequences = StoredSequences(shard.prefix)
            stream.add(Shard(sequences, self._share(sequences) if number == 0 else range(len(sequences.lengths))))
        if shards_so_far.is_finished:
            stream.finish()
        return stream

    def _share(self, sequences: StoredSequences) -> range:
        count = len(sequences.lengths)
        return range(count) if self.split is None else split_ranges(self.split, count)[0]

    def _part(self) -> Any:
        if not self.datasets:
            raise BadData("the run trained on made-up tokens", "there are no documents behind them")
        sources: list[Source | StreamSource] = []
        for dataset in self.datasets:
            if dataset.shard_list is not None:
                sources.append(StreamSource(self._stream(dataset.shard_list), dataset.weight))
                continue
            _check_unchanged(dataset)
            sequences = StoredSequences(dataset.prefix)
            share = self._share(sequences)
            sources.append(Source(dataset.prefix, sequences, share, dataset.weight, dataset.packed is not None))
        if self.phases:
            return phased(sources, self.phases, self.seed)
        return part_of(sources, (*self.earlier_samples, self.samples), self.seq_length, self.seed)


def _check_unchanged(dataset: OrderedDataset) -> None:
    for ending in ("bin", "idx"):
        path, size_bytes = f"{dataset.prefix}.{ending}", dataset.version.get(f"{ending}_bytes")
        remote = indexed_dataset.RemoteBin.of(dataset.prefix) if ending == "bin" else None
        if size_bytes not in (None, remote.size_bytes if remote else storage.size_bytes(path)):
            raise BadData(f"{path}: is another file than the run has read: it had {size_bytes} bytes")


def _listed(path: str) -> ShardList:
    return shard_list.parse(storage.read_bytes(path).decode("utf-8", "surrogateescape"), path)


def _index_directory(index: Any, name: str, caches: Sequence[str], temporary_directory: Path) -> Path:
    """Return the directory of an index, built in `temporary_directory` if no cache has it.

    Open memory maps stay readable after the temporary directory is deleted.
    """
    for cache in caches:
        directory = Path(cache, name)
        if directory.is_dir():
            sample_index.check(directory)
            return directory
    directory = temporary_directory / name
    directory.mkdir()
    index.make(directory)
    return directory


def read(run: str | os.PathLike[str]) -> list[AttemptOrder]:
    """Read the attempts of a run in their order. Raises NoInput without a data order, BadData if it is malformed.

    A line that was cut off is passed over: its attempt has trained nothing.
    """
    path = f"{os.fspath(run)}/{FILE}" if storage.is_remote(run) else os.path.join(run, FILE)
    if not storage.exists(path):
        raise NoInput(
            f"{path}: no such file", "name the directory that lt-train saved into (--save); older versions did not write it"
        )
    attempts = []
    for number, line in enumerate(storage.read_bytes(path).splitlines(), 1):
        if line.startswith(b"{") and not line.endswith(b"}"):
            continue
        try:
            attempts.append(AttemptOrder.from_record(dict(strict_json.loads(line, has_paths=True))))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise BadData(f"{path}, line {number}: not the data order of an attempt: {error}") from None
    if not attempts:
        raise NoInput(f"{path}: is empty")
    return attempts


def of_step(attempts: Sequence[AttemptOrder], step: int) -> AttemptOrder:
    """The latest attempt that began before `step`, which counts from 1. Raises BadData for a step that none has."""
    latest = next((attempt for attempt in reversed(attempts) if attempt.step < step), None)
    if latest is None or step > latest.train_iters:
        begin, end = min(attempt.step for attempt in attempts) + 1, max(attempt.train_iters for attempt in attempts)
        raise BadData(f"step {step}: the run has steps {begin} to {end}")
    return latest


def samples_of(attempts: Sequence[AttemptOrder], first_step: int, last_step: int) -> range:
    """The run's sample numbers, from 0, of steps that may be of several attempts. Raises as `of_step`."""
    first, last = (of_step(attempts, step).samples_of(step, step) for step in (first_step, last_step))
    return range(first.start, last.stop)


def step_of(attempts: Sequence[AttemptOrder], sample: int) -> int:
    """The step, from 1, that trains on a sample of the run."""
    attempt = next((one for one in reversed(attempts) if one.consumed_samples <= sample), attempts[0])
    return attempt.step_of(sample)


def line(attempt: AttemptOrder) -> str:
    """Encode an attempt as a line of the file."""
    return json.dumps(attempt.to_record(), separators=(",", ":"))
