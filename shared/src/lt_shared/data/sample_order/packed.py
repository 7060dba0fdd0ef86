"""The samples of a packed dataset: each is one of its sequences, which lt-preprocess has filled with whole documents.

The sequences are an endless stream, whose order is shuffled anew for each epoch. A run reads it from the beginning, a phase of a
run from where the phase before ended.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lt_shared.data.sample_order import sample_index
from lt_shared.data.sample_order.samples import Sequences, Span, Tokens

# In the places of a sample that have no token.
PADDING = -1


@dataclasses.dataclass(frozen=True)
class PackedReading:
    """`samples` sequences of `first` to before `last`, from the `begin`-th of the stream on."""

    first: int
    last: int
    begin: int
    samples: int
    seed: int


@dataclasses.dataclass(frozen=True, eq=False)
class PackedPart:
    """The same interface as `DatasetPart`. The index depends on the number of sequences, not on their content."""

    sequences: Sequences
    reading: PackedReading
    sequence_length: int

    @property
    def order(self) -> tuple[Any, ...]:
        """Each epoch is shuffled by itself: more samples come after the others."""
        return ()

    @property
    def indices(self) -> "list[PackedPart]":
        return [self]

    def name(self) -> str:
        text = json.dumps({"v": 1, **dataclasses.asdict(self.reading)}, sort_keys=True)
        return f"packed-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"

    def make(self, directory: Path) -> None:
        sample_index.write_packed(directory, order(self.reading))

    def load(self, directory_by_index: Mapping[Any, Path]) -> "PackedSamples":
        (numbers,) = sample_index.load(directory_by_index[self], sample_index.DOCUMENT_INDEX)
        return PackedSamples(self.sequences, numbers, self.sequence_length)


def order(reading: PackedReading) -> npt.NDArray[np.int32]:
    """The numbers of the sequences, in their order."""
    size = reading.last - reading.first
    epochs = range(reading.begin // size, (reading.begin + reading.samples - 1) // size + 1)
    shuffled = [np.arange(reading.first, reading.last, dtype=np.int32) for _ in epochs]
    for epoch, numbers in zip(epochs, shuffled, strict=True):
        np.random.RandomState([reading.seed, epoch]).shuffle(numbers)
    begin = reading.begin - epochs[0] * size
    return np.concatenate(shuffled)[begin : begin + reading.samples]


@dataclasses.dataclass(frozen=True)
class PackedSamples:
    """Each sample is int64 [sequence_length + 1], with PADDING behind its sequence."""

    sequences: Sequences
    numbers: npt.NDArray[np.int32]
    sequence_length: int

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: int) -> Tokens:
        sequence = self.numbers[number : number + 1]
        length = int(self.sequences.lengths[sequence[0]])
        tokens = np.full(self.sequence_length + 1, PADDING, np.int64)
        tokens[:length] = self.sequences.read(np.asarray(sequence), 0, length)
        return tokens

    def dataset(self, number: int) -> int:
        return 0

    def spans(self, number: int) -> list[Span]:
        sequence = int(self.numbers[number])
        return [Span(0, sequence, 0, int(self.sequences.lengths[sequence]))]
