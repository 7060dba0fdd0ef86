"""From a run's datasets to training, validation and test samples, with sizes, weights and rounding as in Megatron-LM.

Sample indices are made once for all ranks and later runs: by rank 0, then by the first rank of every node that does not see
them (a cache on local disks). Their names are digests of what they depend on, lengths of sequences included: a dataset that was
written anew gets a new index, and a copy of it elsewhere uses the old one. Megatron's names know the path alone.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lt_shared.console import BadData
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.data import split_ranges
from lt_train.data import index_cache, sample_index
from lt_train.data.sample_index import Reading
from lt_train.data.samples import (
    BlendedSamples,
    DatasetSamples,
    MockSequences,
    RandomSequences,
    Samples,
    Sequences,
    StoredSequences,
)
from lt_train.runtime import agreement

# Megatron draws a little more from each dataset of a blend than its share, since the blend's rounding is not that of the shares.
SURPLUS = 0.005


def build(config: RunConfig, cache: str | None, train_samples: int | None = None) -> list[Samples | None]:
    """Training, validation and test samples; None for a part without data or evaluations. Called by all ranks together.

    `train_samples` are those of the run's steps when none are given.

    Indices are kept in the directory `cache`; without one they are made anew by each node and forgotten. Raises BadData.
    """
    parts = _parts(config, train_samples or config.batches.train_samples)
    indices = [index for part in parts if part is not None for index in part.indices]
    directory = Path(cache or agreement.from_first_rank(tempfile.mkdtemp(prefix="lt-train-") if _rank() == 0 else None))
    names: list[str] = agreement.from_first_rank([index.name() for index in indices] if _rank() == 0 else None)
    try:
        # The order of the conditions: rank 0 makes all, the first ranks of other nodes what they do not see then.
        for is_turn in (_rank() == 0, _is_first_on_node()):
            if is_turn:
                for index, name in zip(indices, names, strict=True):
                    sample_index.check(index_cache.make_once(directory, name, index.make))
            _wait_for_all()
        found = dict(zip(indices, (index_cache.location(directory, name) for name in names), strict=True))
        samples = [None if part is None else part.load(found) for part in parts]
        _wait_for_all()
    finally:
        if cache is None and _is_first_on_node():
            shutil.rmtree(directory, ignore_errors=True)
    return samples


@dataclasses.dataclass(frozen=True, eq=False)
class DatasetPart:
    """The `share` of a dataset's sequences from which `samples` samples or more are drawn. `origin` is for messages."""

    origin: str
    sequences: Sequences
    share: range
    samples: int
    sequence_length: int
    seed: int

    @property
    def indices(self) -> "list[DatasetPart | Blend]":
        return [self]

    @functools.cached_property
    def reading(self) -> Reading:
        first, last = self.share.start, self.share.stop
        tokens = int(self.sequences.lengths[first:last].sum(dtype=np.int64))
        if tokens == 0:
            raise BadData(f"{self.origin}: no tokens in its sequences {first} to {last}, which are a part of their own")
        return Reading(first, last, tokens, self.samples, self.sequence_length, self.seed)

    def name(self) -> str:
        """Readings that differ in nothing but the number of samples have the same indices, unless they need more epochs."""
        reading = self.reading
        content = hashlib.blake2b(self.sequences.lengths[reading.first : reading.last].view(np.uint8).data, digest_size=16)
        described = dataclasses.asdict(reading) | {"epochs": reading.epochs, "separate": reading.separate_epochs}
        return _digest("samples", {**described, "samples": None, "lengths": content.hexdigest()})

    def make(self, directory: Path) -> None:
        sample_index.write(directory, self.sequences.lengths, self.reading)

    def load(self, found: "dict[DatasetPart | Blend, Path]") -> DatasetSamples:
        return DatasetSamples.load(self.sequences, found[self])


@dataclasses.dataclass(frozen=True, eq=False)
class Blend:
    """`samples` samples drawn from `members` in the proportion of `weights`."""

    members: Sequence[DatasetPart]
    weights: list[float]
    samples: int

    @property
    def indices(self) -> list["DatasetPart | Blend"]:
        return [*self.members, self]

    def name(self) -> str:
        return _digest("blend", {"weights": self.weights, "samples": self.samples})

    def make(self, directory: Path) -> None:
        sample_index.write_blend(directory, self.weights, self.samples)

    def load(self, found: "dict[DatasetPart | Blend, Path]") -> BlendedSamples:
        return BlendedSamples.load([member.load(found) for member in self.members], found[self])


def _parts(config: RunConfig, train_samples: int) -> list[DatasetPart | Blend | None]:
    """Training, validation and test; what is read is opened once."""
    data, batches = config.data, config.batches
    evaluated = data.eval_iters * batches.global_batch_size
    of_each = [data.datasets, data.validation_datasets, data.test_datasets] if data.split is None else [data.datasets] * 3
    opened: dict[str, Sequences] = {}
    for dataset in data.all_datasets:
        opened.setdefault(dataset.prefix, StoredSequences(dataset.prefix))
    parts: list[DatasetPart | Blend | None] = []
    for number, (datasets, samples) in enumerate(zip(of_each, (train_samples, evaluated, evaluated), strict=True)):
        sources = [(dataset.prefix, opened[dataset.prefix]) for dataset in datasets]
        if data.mock:
            kind = RandomSequences if config.benchmark else MockSequences
            sources = [("mock data", kind(config.architecture.vocab_size))]
        shares = [_share(data.split, number, len(sequences.lengths)) for _, sequences in sources]
        if not samples or not sources or not all(shares):
            parts.append(None)
            continue
        weights = _normalized([dataset.weight for dataset in datasets] or [1.0])
        drawn = [math.ceil(samples * weight) for weight in weights]
        surplus = [math.ceil(count * (1 + SURPLUS)) for count in drawn] if len(sources) > 1 else [samples]
        members = [
            DatasetPart(origin, sequences, share, count, batches.seq_length, config.seed)
            for (origin, sequences), share, count in zip(sources, shares, surplus, strict=True)
        ]
        parts.append(Blend(members, _normalized(weights), sum(drawn)) if len(members) > 1 else members[0])
    return parts


def _share(split: str | None, number: int, sequences: int) -> range:
    return range(sequences) if split is None else split_ranges(split, sequences)[number]


def _normalized(weights: Sequence[float]) -> list[float]:
    """In NumPy's order of summation, whose last bit decides ties of the blend as in Megatron."""
    array = np.array(weights, dtype=np.float64)
    normalized: list[float] = (array / np.sum(array)).tolist()
    return normalized


def _digest(kind: str, described: dict[str, Any]) -> str:
    """The name of an index; the format's version is 1."""
    text = json.dumps({"v": 1, **described}, sort_keys=True)
    return f"{kind}-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def _is_first_on_node() -> bool:
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def _wait_for_all() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
