"""The training, validation or test part of a run's data: its sequences, its number of samples, and its indices.

An index's file name is a digest of its inputs, sequence lengths included: a rewritten dataset gets a new index, and a copy in
another place uses the old index. Megatron's file names depend on the path alone.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lt_shared.console import BadData
from lt_shared.data.sample_order import sample_index
from lt_shared.data.sample_order.packed import PackedPart, PackedReading
from lt_shared.data.sample_order.sample_index import Reading
from lt_shared.data.sample_order.samples import BlendedSamples, DatasetSamples, ExtendedSamples, Sequences
from lt_shared.data.sample_order.stream import Stream, StreamSamples

# Megatron draws a little more than a dataset's share, because the blend rounds differently from the shares.
SURPLUS = 0.005


@dataclasses.dataclass(frozen=True, eq=False)
class DatasetPart:
    """At least `samples` samples drawn from the `share` of a dataset's sequences. `origin` is for messages."""

    origin: str
    sequences: Sequences
    share: range
    samples: int
    sequence_length: int
    seed: int | tuple[int, int]

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

    @property
    def order(self) -> tuple[Any, ...]:
        """Parts that differ in their number of samples alone, and are equal in this, begin with the same samples."""
        return self.reading.epochs, self.reading.separate_epochs

    def name(self) -> str:
        """Readings that differ in nothing but the number of samples have the same indices, unless they need more epochs."""
        reading = self.reading
        content = hashlib.blake2b(self.sequences.lengths[reading.first : reading.last].view(np.uint8).data, digest_size=16)
        described = dataclasses.asdict(reading) | {"epochs": reading.epochs, "separate": reading.separate_epochs}
        return _digest("samples", {**described, "samples": None, "lengths": content.hexdigest()})

    def make(self, directory: Path) -> None:
        sample_index.write(directory, self.sequences.lengths, self.reading)

    def load(self, directory_by_index: Mapping[Any, Path]) -> DatasetSamples:
        return DatasetSamples.load(self.sequences, directory_by_index[self])


@dataclasses.dataclass(frozen=True, eq=False)
class ExtendedPart:
    """The share of a dataset in a run that has become longer: whole epochs as first shuffled, then `sections` of further epochs.

    A longer run of Megatron-LM shuffles all of its epochs anew, so it would skip some samples and repeat others.
    """

    sections: tuple[DatasetPart, ...]

    @property
    def order(self) -> tuple[Any, ...]:
        return tuple(section.order for section in self.sections)

    @property
    def indices(self) -> "list[DatasetPart | Blend]":
        return list(self.sections)

    def load(self, directory_by_index: Mapping[Any, Path]) -> ExtendedSamples:
        return ExtendedSamples([section.load(directory_by_index) for section in self.sections])


@dataclasses.dataclass(frozen=True, eq=False)
class StreamPart:
    """`samples` samples drawn from a stream, from token `begin` on; `end` as in `StreamSamples`.

    A stream has no index, because its order follows as its shards arrive.
    """

    stream: Stream
    samples: int
    sequence_length: int
    begin: int = 0
    end: int | None = None

    @property
    def order(self) -> tuple[Any, ...]:
        return ()

    @property
    def indices(self) -> "list[DatasetPart | Blend]":
        return []

    def load(self, directory_by_index: Mapping[Any, Path]) -> StreamSamples:
        return StreamSamples(self.stream, self.sequence_length, self.samples, self.begin, self.end)


@dataclasses.dataclass(frozen=True, eq=False)
class Blend:
    """`samples` samples drawn from `members` in the proportion of `weights`. `draw` is as for `sample_index.write_blend`."""

    members: Sequence[DatasetPart | ExtendedPart | PackedPart | StreamPart]
    weights: list[float]
    samples: int
    draw: Callable[..., None] = sample_index.draw_blend

    @property
    def order(self) -> tuple[Any, ...]:
        return tuple(member.order for member in self.members)

    @property
    def indices(self) -> list["DatasetPart | PackedPart | Blend"]:
        return [*(index for member in self.members for index in member.indices), self]

    def name(self) -> str:
        return _digest("blend", {"weights": self.weights, "samples": self.samples})

    def make(self, directory: Path) -> None:
        sample_index.write_blend(directory, self.weights, self.samples, self.draw)

    def load(self, directory_by_index: Mapping[Any, Path]) -> BlendedSamples:
        return BlendedSamples.load([member.load(directory_by_index) for member in self.members], directory_by_index[self])


def _digest(kind: str, described: dict[str, Any]) -> str:
    """The name of an index; the format's version is 1."""
    text = json.dumps({"v": 1, **described}, sort_keys=True)
    return f"{kind}-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


@dataclasses.dataclass(frozen=True)
class Source:
    """The `share` of a dataset's sequences that belongs to a part, and its weight in the blend.

    Each sequence of a packed dataset is one sample.
    """

    origin: str
    sequences: Sequences
    share: range
    weight: float = 1.0
    is_packed: bool = False


@dataclasses.dataclass(frozen=True)
class StreamSource:
    """A stream, and its weight in the blend."""

    stream: Stream
    weight: float = 1.0


def part_of(
    sources: Sequence[Source | StreamSource],
    samples: int | Sequence[int],
    sequence_length: int,
    seed: int,
    draw: Callable[..., None] = sample_index.draw_blend,
) -> DatasetPart | ExtendedPart | PackedPart | StreamPart | Blend:
    """One part of `samples` samples or more, with sizes and rounding as in Megatron-LM.

    Several numbers are the successive lengths of a run that has become longer: the samples of a length keep their order in the
    next one. The blend's order does not depend on its length.
    """
    lengths = [samples] if isinstance(samples, int) else samples
    weights = _normalized([source.weight for source in sources])
    drawn = [[math.ceil(length * weight) for length in lengths] for weight in weights]
    surplus = drawn if len(sources) == 1 else [[math.ceil(count * (1 + SURPLUS)) for count in counts] for counts in drawn]
    members = [member(source, counts, sequence_length, seed) for source, counts in zip(sources, surplus, strict=True)]
    return Blend(members, _normalized(weights), sum(counts[-1] for counts in drawn), draw) if len(members) > 1 else members[0]


def member(
    source: Source | StreamSource, lengths: Sequence[int], sequence_length: int, seed: int
) -> DatasetPart | ExtendedPart | PackedPart | StreamPart:
    """Build the part that draws samples from one dataset or stream; `lengths` are their successive numbers."""
    if isinstance(source, StreamSource):
        return StreamPart(source.stream, lengths[-1], sequence_length)
    if source.is_packed:
        reading = PackedReading(source.share.start, source.share.stop, 0, lengths[-1], seed)
        return PackedPart(source.sequences, reading, sequence_length)
    sections = [DatasetPart(source.origin, source.sequences, source.share, lengths[0], sequence_length, seed)]
    for length in lengths[1:]:
        missing = length - sum(section.reading.all_samples for section in sections)
        if missing > 0:
            epochs = sum(section.reading.epochs for section in sections)
            later = DatasetPart(source.origin, source.sequences, source.share, missing, sequence_length, (seed, epochs))
            sections.append(later)
    return ExtendedPart(tuple(sections)) if len(sections) > 1 else sections[0]


def _normalized(weights: Sequence[float]) -> list[float]:
    """In NumPy's order of summation, whose last bit decides ties of the blend as in Megatron."""
    array = np.array(weights, dtype=np.float64)
    normalized: list[float] = (array / np.sum(array)).tolist()
    return normalized
