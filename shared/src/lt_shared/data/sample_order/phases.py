"""The samples of a run in phases with different dataset weights and sample lengths.

A dataset is one line of tokens: its sequences, in an order that is shuffled anew for every epoch. A phase takes the next stretch
of this line after the earlier phases, cuts it into samples of the phase's length, and shuffles these samples. So no text returns
before its epoch is over, and the samples of a phase depend only on the seed, the sequences and the earlier phases: a later phase
may be decided later. Megatron's indices shuffle all samples of a run together, which requires the run's length. A stream whose
shards still arrive is also such a line; its samples change places only within a window.

The blend of a phase is Megatron's: the dataset furthest behind its share comes next. It was not ahead of its share before, so it
is ahead by at most one sample afterwards: a stretch has room for two samples more than the share, and unused samples are not
read.
"""

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lt_shared.console import BadData
from lt_shared.data.sample_order import sample_index
from lt_shared.data.sample_order.packed import PackedPart, PackedReading
from lt_shared.data.sample_order.parts import Blend, Source, StreamPart, StreamSource
from lt_shared.data.sample_order.sample_index import Stretch
from lt_shared.data.sample_order.samples import DatasetSamples, Samples, Sequences, Span, Tokens

SPARE_SAMPLES = 2


@dataclasses.dataclass(frozen=True)
class Phase:
    """`samples` samples of `sequence_length` + 1 tokens, from datasets in the proportion of `weights`, 0 for those it lacks.

    The order does not depend on `global_batch_size`; None is the run's batch size.
    """

    samples: int
    sequence_length: int
    weights: tuple[float, ...]
    global_batch_size: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class StretchPart:
    """The samples that a phase takes from one dataset. Like `DatasetPart`, an index that is made once and found by its name."""

    sequences: Sequences
    stretch: Stretch

    @property
    def indices(self) -> "list[StretchPart]":
        return [self]

    def name(self) -> str:
        lengths = self.sequences.lengths[self.stretch.first : self.stretch.last]
        content = hashlib.blake2b(lengths.view(np.uint8).data, digest_size=16).hexdigest()
        text = json.dumps({"v": 1, **dataclasses.asdict(self.stretch), "lengths": content}, sort_keys=True)
        return f"stretch-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"

    def make(self, directory: Path) -> None:
        sample_index.write_stretch(directory, self.sequences.lengths, self.stretch)

    def load(self, directory_by_index: Mapping[Any, Path]) -> DatasetSamples:
        return DatasetSamples.load(self.sequences, directory_by_index[self])


@dataclasses.dataclass(frozen=True, eq=False)
class PhasedPart:
    """Phases in sequence: the blend or the single stretch of a phase, and the dataset numbers of its members."""

    phases: Sequence[tuple[Phase, Any, tuple[int, ...]]]

    @property
    def indices(self) -> list[Any]:
        return [index for _, part, _ in self.phases for index in part.indices]

    def load(self, directory_by_index: Mapping[Any, Path]) -> "PhasedSamples":
        sizes = [phase.samples for phase, _, _ in self.phases]
        return PhasedSamples(
            [part.load(directory_by_index) for _, part, _ in self.phases],
            [numbers for _, _, numbers in self.phases],
            np.cumsum([0, *sizes]).tolist(),
        )


def phased(
    sources: Sequence[Source | StreamSource],
    phases: Sequence[Phase],
    seed: int,
    draw: Callable[..., None] = sample_index.draw_blend,
) -> PhasedPart:
    """The training part of a run whose datasets are `sources`; their own weights do not count. Raises BadData."""
    begins = [0] * len(sources)
    sizes = [_tokens(source) if isinstance(source, Source) else 0 for source in sources]
    phase_parts = []
    for number, phase in enumerate(phases):
        numbers = tuple(index for index, weight in enumerate(phase.weights) if weight)
        weights = np.array([phase.weights[index] for index in numbers], np.float64)
        weights /= weights.sum()
        members: list[Any] = []
        for index, weight in zip(numbers, weights.tolist(), strict=True):
            room = phase.samples if len(numbers) == 1 else math.ceil(phase.samples * weight) + SPARE_SAMPLES
            source, begin, length = sources[index], begins[index], phase.sequence_length
            begins[index] += room * length
            if isinstance(source, StreamSource):
                members.append(StreamPart(source.stream, room, length, begin, room))
            elif source.is_packed:
                reading = PackedReading(source.share.start, source.share.stop, begin, room, seed)
                members.append(PackedPart(source.sequences, reading, length))
                begins[index] = begin + room
            else:
                stretch = Stretch(source.share.start, source.share.stop, sizes[index], begin, room, length, seed, number)
                members.append(StretchPart(source.sequences, stretch))
        blend: Any = Blend(members, weights.tolist(), phase.samples, draw) if len(members) > 1 else members[0]
        phase_parts.append((phase, blend, numbers))
    return PhasedPart(phase_parts)


def _tokens(source: Source) -> int:
    tokens = int(source.sequences.lengths[source.share.start : source.share.stop].sum(dtype=np.int64))
    if tokens == 0:
        raise BadData(f"{source.origin}: no tokens in its sequences {source.share.start} to {source.share.stop}")
    return tokens


@dataclasses.dataclass(frozen=True)
class PhasedSamples:
    """`begins` has the first samples of `phases` and the end of the last phase; `datasets` has the numbers of their members."""

    phases: Sequence[Samples]
    datasets: Sequence[tuple[int, ...]]
    begins: Sequence[int]

    def __len__(self) -> int:
        return self.begins[-1]

    def __getitem__(self, number: int) -> Tokens:
        phase, within = self._place(number)
        return self.phases[phase][within]

    def dataset(self, number: int) -> int:
        phase, within = self._place(number)
        return self.datasets[phase][self.phases[phase].dataset(within)]

    def spans(self, number: int) -> list[Span]:
        phase, within = self._place(number)
        return [span._replace(dataset=self.datasets[phase][span.dataset]) for span in self.phases[phase].spans(within)]

    def _place(self, number: int) -> tuple[int, int]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        phase = next(index for index, (_, end) in enumerate(itertools.pairwise(self.begins)) if number < end)
        return phase, number - self.begins[phase]
