"""Follow the shard lists of a run's streams on every rank.

The order of the samples depends on the lists alone. So the ranks need not agree on the number of shards, only on whether to wait;
the trainer asks them after each step for the next step. A rank reads a list when a shard is missing, at most twice a second. The
first rank checks each shard as the launcher checks datasets, and checks that a resumed run finds the shards that it was trained
on.

On shared storage, one node may see a longer list than another node, and a line before its files: NFS caches a directory for up to
a minute. A shard of a growing list counts as present when its files exist.
"""

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lt_shared.console import BadData, ToolError
from lt_shared.contracts.checkpoint_layout import RunRecord
from lt_shared.contracts.manifest import Dataset
from lt_shared.data.sample_order import shard_list
from lt_shared.data.sample_order.phases import PhasedSamples
from lt_shared.data.sample_order.samples import BlendedSamples, Samples
from lt_shared.data.sample_order.split import split_ranges
from lt_shared.data.sample_order.stream import Shard, StreamSamples
from lt_shared.data.sample_order.stream import Stream as Tokens
from lt_shared.files import storage
from lt_train.config.settings import data as data_settings
from lt_train.config.settings import streaming
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.config.settings.data import Data
from lt_train.data import dataset_versions, remote_datasets
from lt_train.data.arrival import Arrival
from lt_train.process import stream_intake

POLL_SECONDS = 0.5
# Blend entries that are searched at once, from the end, for the last sample of a stream.
LOOKED_BACK = 4096

# The samples of a stream in one phase, and their number.
Drawn = tuple[StreamSamples, int]


class Stream:
    """A stream that this rank follows. It begins with dataset `number` of `data`.

    `run` is the run's local directory, which holds the lists of pipes. `expected` are the shards that the resumed checkpoint was
    trained on.
    """

    def __init__(
        self,
        data: Data,
        vocab_size: int,
        run: str | None,
        number: int,
        tokens: Tokens,
        expected: list[dict[str, Any]] | None,
    ):
        streams = data.streaming
        assert streams is not None
        place, directory = streams.lists[number], os.environ.get(stream_intake.DIRECTORY_VARIABLE, "")
        assert place is not None
        self.tokens = tokens
        self.path = streaming.list_path(place, run, directory)
        self.is_finished = False
        self.problem: ToolError | None = None
        """The error of a line that does not belong in the list."""
        self.late: str | None = None
        """The prefix of a listed shard whose files are not visible yet."""
        self._grows = streams.follow or place.startswith(streaming.PIPE)
        self._broken = streaming.broken_path(place, directory) if directory else None
        self._data = data
        self._vocab_size = vocab_size
        self._expected = expected
        self._shards: list[Dataset] = []
        self._versions: list[dict[str, Any]] = []
        self._read_version: object = None
        self._next_poll = 0.0
        self._late_since = 0.0

    @property
    def name(self) -> str:
        return str(self._shards[0].stream) if self._shards else self.path

    def is_ready(self, drawn: Drawn | None) -> bool:
        """Whether all shards of `drawn` are present."""
        if drawn is None:
            return True
        samples, end = drawn
        if samples.is_ready(end):
            return True
        if time.monotonic() < self._next_poll or self.is_finished:
            return False
        self._next_poll = time.monotonic() + POLL_SECONDS
        try:
            self.poll()
        except ToolError as problem:
            # Keep the error, so that the trained steps are saved first.
            self.problem = problem
            return False
        return samples.is_ready(end)

    def poll(self) -> None:
        """Read new lines of the list. Raise BadData for a line that does not belong in it."""
        version = _version(self.path)
        if version is None or version == self._read_version:
            return
        shard_names = shard_list.parse(storage.read_bytes(self.path).decode("utf-8", "surrogateescape"), self.path)
        for shard in shard_names.shards[: len(self._shards)]:
            shard_list.check_follows(self._shards, shard, self.path)
        for shard in shard_names.shards[len(self._shards) :]:
            if self._is_late(shard):
                return
            self._add(shard)
        # A restarted producer may list fewer shards for a while.
        if shard_names.is_finished:
            self._finish(len(shard_names.shards))
        self._read_version = version

    def _is_late(self, shard: Dataset) -> bool:
        """Whether to wait for the files of a shard. After a time limit they count as missing."""
        if not self._grows or shard_list.is_visible(shard):
            self.late = None
            return False
        if self.late is None:
            self.late, self._late_since = shard.prefix, time.monotonic()
        return time.monotonic() - self._late_since < shard_list.LATEST_SECONDS

    @property
    def awaited(self) -> str:
        """Describe the present shards of the stream, for a message."""
        late = f"; {self.late} is listed, its files are not seen here yet" if self.late else ""
        return f"{self.name} ({len(self._shards)} shards so far{late})"

    @property
    def failure(self) -> str | None:
        """Return the reason if no more shards will come though the stream is not finished."""
        if self.problem:
            return str(self.problem)
        if self._broken is None or not self._broken.exists():
            return None
        return self._broken.read_text(errors="surrogateescape")

    @property
    def record(self) -> dict[str, Any]:
        """Return the stream's record for a checkpoint."""
        return {"name": self.name, "window_tokens": self.tokens.windows.window_tokens, "shards": list(self._versions)}

    def _add(self, shard: Dataset) -> None:
        number, data = len(self._shards), self._data
        local_shard = remote_datasets.local_copy(shard, Path(str(data.object_cache_path)))
        if self._expected is not None:
            self._check(local_shard, number)
        sequences = remote_datasets.open_sequences(data, local_shard, is_shard=True)
        count = len(sequences.lengths)
        share = split_ranges(data.split, count)[0] if number == 0 and data.split is not None else range(count)
        self._shards.append(shard)
        self.tokens.add(Shard(sequences, share))

    def _check(self, shard: Dataset, number: int) -> None:
        """Raise as `data_settings.check_datasets`, and BadData if the run was trained on another shard."""
        data = self._data
        checked = dataclasses.replace(
            data, datasets=(data.datasets[0], shard), validation_datasets=(), test_datasets=(), split=None
        )
        for problem in data_settings.check_vocabulary((shard,), self._vocab_size):
            raise problem
        data_settings.check_datasets(checked, self._vocab_size)
        version = {"prefix": shard.prefix, "tokens": shard.tokens, **_only_version(shard)}
        assert self._expected is not None
        if number < len(self._expected):
            expected_version = self._expected[number]
            for name in version.keys() & expected_version.keys() - {"prefix"}:
                if expected_version[name] != version[name]:
                    raise BadData(
                        f"{self.path}: shard {number}, {shard.prefix}, is another one than the run was trained on:"
                        f" {name} was {expected_version[name]} and is {version[name]}",
                        "put the shards back, or begin another run: another --save",
                    )
        self._versions.append(version)

    def _finish(self, shards: int) -> None:
        trained = max(len(self._shards), len(self._expected or ()))
        if shards < trained:
            raise BadData(f"{self.path}: ends after {shards} shards, the run has read {trained}", "put the shards back")
        if not self.is_finished:
            self.tokens.finish()
        self.is_finished = True


def _only_version(shard: Dataset) -> dict[str, int]:
    return next(iter(dataset_versions.versions([shard]).values()), {})


def _version(path: str) -> object:
    """Return a value that changes with the file; None if the file is missing, perhaps because a producer is replacing it."""
    if storage.is_remote(path):
        return storage.fingerprint(path, refresh=True) if storage.exists(path) else None
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


class Arrivals:
    """The streams of a run's training samples, on one rank. Without streams, all samples are present."""

    def __init__(
        self,
        data: Data,
        vocab_size: int,
        checkpointing: Checkpointing,
        samples: Samples | None,
        tokens: Mapping[int, Tokens],
        rank: int,
    ):
        """`tokens` maps the numbers of datasets to the tokens of their streams."""
        self._samples = samples
        recorded = _read_recorded_shards(checkpointing, len(tokens)) if tokens and rank == 0 else [None] * len(tokens)
        self._streams: dict[int, Stream] = {}
        for (number, stream_tokens), expected in zip(tokens.items(), recorded, strict=True):
            self._streams[number] = Stream(data, vocab_size, checkpointing.directory, number, stream_tokens, expected)
            self._streams[number].poll()
        self._epochs = dict.fromkeys(tokens, 0)

    def is_ready(self, end: int) -> bool:
        """Whether all of the run's samples up to before `end` can be read."""
        return not self._missing(end)

    def _missing(self, end: int) -> list[Stream]:
        unfinished = [(number, stream) for number, stream in self._streams.items() if not stream.is_finished]
        return [stream for number, stream in unfinished if not stream.is_ready(self._drawn(number, end))]

    def _drawn(self, number: int, end: int) -> Drawn | None:
        """Return the samples that the run draws from a stream up to before `end`, in the last phase that uses the stream."""
        return _drawn(self._samples, number, end) if self._samples is not None else None

    def arrival(self, end: int) -> Arrival:
        """Return whether this rank sees the samples up to before `end`."""
        if self.is_ready(end):
            return Arrival.READY
        return Arrival.FAILED if self.failure else Arrival.WAITING

    @property
    def failure(self) -> str | None:
        """Return the reason why the producer of an unfinished stream has ended."""
        return next((reason for stream in self._streams.values() if (reason := stream.failure)), None)

    @property
    def problem(self) -> ToolError | None:
        """Return the error in the list of a growing stream."""
        return next((stream.problem for stream in self._streams.values() if stream.problem), None)

    def awaited(self, end: int) -> str:
        """Describe the streams that lack a shard for the samples up to before `end`."""
        return ", ".join(stream.awaited for stream in self._missing(end))

    def new_epochs(self, end: int) -> list[str]:
        """Return log lines for streams that begin another epoch before `end`. The samples must be present."""
        messages = []
        for member, stream in self._streams.items():
            drawn = self._drawn(member, end) if stream.is_finished else None
            epoch = drawn[0].epoch(drawn[1] - 1) if drawn else 0
            if epoch > self._epochs[member]:
                shards = len(stream.tokens.shards)
                messages.append(f"{stream.name}: epoch {epoch + 1} begins: all {shards} shards again, shuffled anew")
                self._epochs[member] = epoch
        return messages

    @property
    def record(self) -> list[dict[str, Any]] | None:
        """Return the first rank's records for its checkpoints."""
        return [stream.record for stream in self._streams.values()] or None


def _drawn(samples: Samples, number: int, end: int) -> Drawn | None:
    """Return the samples drawn from dataset `number`, a stream, up to before `end`, in the last phase that uses it."""
    if isinstance(samples, PhasedSamples):
        parts = zip(samples.phases, samples.datasets, samples.begins, samples.begins[1:], strict=False)
        for part, numbers, first, last in reversed([row for row in parts if row[2] < end and number in row[1]]):
            if documents := _drawn(part, numbers.index(number), min(end, last) - first):
                return documents
        return None
    member = samples
    if isinstance(samples, BlendedSamples):
        member, end = samples.members[number], _drawn_of_blend(samples, number, end)
    assert isinstance(member, StreamSamples)
    return (member, end) if end > 0 else None


def _drawn_of_blend(samples: BlendedSamples, number: int, end: int) -> int:
    """Count the samples of a dataset among the samples of the blend before `end`."""
    last = min(end, len(samples))
    while last > 0:
        first = max(0, last - LOOKED_BACK)
        positions = np.flatnonzero(samples.dataset_index[first:last] == number)
        if len(positions):
            return int(samples.dataset_sample_index[first + positions[-1]]) + 1
        last = first
    return 0


def _read_recorded_shards(checkpointing: Checkpointing, streams: int) -> list[list[dict[str, Any]]]:
    """Read the shards that the resumed checkpoint was trained on, a list per stream; empty lists for a new run."""
    if checkpointing.start is None or (checkpointing.finetune and not checkpointing.continues):
        return [[]] * streams
    start = Path(checkpointing.start)
    recorded = RunRecord.read(start).streams if (start / "run.json").is_file() else None
    return [stream["shards"] for stream in recorded or []] or [[]] * streams
