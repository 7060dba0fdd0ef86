"""Read the samples of a run on demand: sequence_length + 1 tokens of one dataset, or of a blend's next dataset.

The .bin is read with pread, which lets other threads run while the disk is awaited: a page fault in a memory map would stop all
threads of the process, and with them the training step.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lt_shared.console import IoFailure
from lt_shared.data import indexed_dataset
from lt_shared.data.sample_order import sample_index
from lt_shared.files.mapping import OpenFiles, identity_of

Tokens = npt.NDArray[np.integer[Any]]


class Span(NamedTuple):
    """`length` tokens of sequence number `sequence`, from token `start` on.

    `dataset` is the dataset's number in the blend, from 0. In a stream, the sequence is in the shard with the number `shard`.
    """

    dataset: int
    sequence: int
    start: int
    length: int
    shard: int = 0


class Sequences(Protocol):
    """Token sequences that samples are cut from; `lengths` is int32 [S]."""

    lengths: npt.NDArray[np.int32]

    def read(self, numbers: Tokens, start: int, end: int) -> Tokens:
        """Join the sequences `numbers`: from token `start` of the first sequence to before token `end` of the last sequence."""


class TokenFile(Protocol):
    """A `.bin` on a disk or a store. Safe to use from many threads."""

    def read_into(self, pieces: Sequence[tuple[memoryview, int]]) -> None:
        """Fill each buffer with the bytes from its offset on. Raises IoFailure if they cannot be read."""


@functools.cache
def _open_files() -> OpenFiles:
    """The `.bin` files that this process has open: all of a usual blend, and some of a blend of thousands of datasets."""
    return OpenFiles()


class LocalBin:
    """A `.bin` on a mounted filesystem. It must stay what it was, also while it is not open."""

    def __init__(self, path: str):
        self.path = path
        self._identity = identity_of(os.stat(path))

    def __del__(self) -> None:
        _open_files().close(self.path)

    def read_into(self, pieces: Sequence[tuple[memoryview, int]]) -> None:
        try:
            with _open_files().descriptor(self.path, self._identity) as descriptor:
                for target, offset in pieces:
                    self._fill(descriptor, target, offset)
        except OSError as error:
            raise IoFailure(f"{self.path}: {error.strerror}") from error

    def _fill(self, descriptor: int, target: memoryview, offset: int) -> None:
        while target:
            count = os.preadv(descriptor, [target], offset)
            if count == 0:
                raise IoFailure(f"{self.path}: ends at byte {offset}", "the file was changed while the run read it")
            target, offset = target[count:], offset + count


class StoredSequences:
    """The sequences of a `.bin/.idx` pair. Without `file`, the `.bin` is read from its place beside the `.idx`."""

    def __init__(self, prefix: str, file: TokenFile | None = None):
        reader = indexed_dataset.Reader(prefix, thorough=False, remote=True)
        self.lengths = reader.sequence_lengths
        self.offsets = reader.sequence_offsets
        self.dtype = reader.dtype
        self._file: TokenFile = file or reader.remote or LocalBin(indexed_dataset.bin_path(prefix))

    def read(self, numbers: Tokens, start: int, end: int) -> Tokens:
        width = self.dtype.itemsize
        # take() would first copy the whole column, which is not aligned in the .idx.
        offsets = self.offsets[numbers]
        sizes = self.lengths[numbers].astype(np.int64) * width
        sizes[-1] = end * width
        offsets[0] += start * width
        sizes[0] -= start * width
        content = bytearray(int(sizes.sum()))
        view, filled = memoryview(content), 0
        pieces = []
        for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True):
            pieces.append((view[filled : filled + size], offset))
            filled += size
        self._file.read_into(pieces)
        return np.frombuffer(content, self.dtype)


# Added to a token that does not count in the loss: above every token id, in int64.
UNCOUNTED = 1 << 32


class MaskedSequences:
    """The sequences of a dataset with a loss mask: int64 tokens, with UNCOUNTED added to those that do not count."""

    def __init__(self, tokens: StoredSequences, mask: StoredSequences):
        self.lengths = tokens.lengths
        self._tokens, self._mask = tokens, mask

    def read(self, numbers: Tokens, start: int, end: int) -> Tokens:
        tokens, mask = (sequences.read(numbers, start, end) for sequences in (self._tokens, self._mask))
        return np.where(mask == 0, tokens.astype(np.int64) + UNCOUNTED, tokens)


class Samples(Protocol):
    """The samples of a part of a run's data, in their order."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Tokens:
        """The sequence_length + 1 tokens of sample `number`, with UNCOUNTED added to those that do not count in the loss."""

    def dataset(self, number: int) -> int:
        """Return the number in the blend, from 0, of the dataset that sample `number` comes from."""

    def spans(self, number: int) -> list[Span]:
        """Locate the tokens of sample `number`, in their order."""


@dataclasses.dataclass(frozen=True)
class DatasetSamples:
    """The samples that one dataset gives, in the order of its indices."""

    sequences: Sequences
    document_index: npt.NDArray[np.int32]
    sample_index: Tokens
    shuffle_index: Tokens

    @classmethod
    def load(cls, sequences: Sequences, directory: Path) -> "DatasetSamples":
        names = (sample_index.DOCUMENT_INDEX, sample_index.SAMPLE_INDEX, sample_index.SHUFFLE_INDEX)
        return cls(sequences, *sample_index.load(directory, *names))

    def __len__(self) -> int:
        return len(self.shuffle_index)

    def __getitem__(self, number: int) -> Tokens:
        return self.sequences.read(*self._range(number))

    def dataset(self, number: int) -> int:
        return 0

    def spans(self, number: int) -> list[Span]:
        numbers, start, end = self._range(number)
        starts = np.zeros(len(numbers), np.int64)
        starts[0] = start
        ends = self.sequences.lengths[numbers].astype(np.int64)
        ends[-1] = end
        columns = zip(numbers.tolist(), starts.tolist(), (ends - starts).tolist(), strict=True)
        return [Span(0, sequence, first, length) for sequence, first, length in columns if length]

    def _range(self, number: int) -> tuple[Tokens, int, int]:
        """Return the arguments of `Sequences.read` for sample `number`."""
        row = int(self.shuffle_index[number])
        (first, start), (last, end) = self.sample_index.take((row, row + 1), axis=0).tolist()
        # Up to the first token of the next sample, included: it is the label of the last position.
        return self.document_index[first : last + 1], start, end + 1


@dataclasses.dataclass(frozen=True)
class ExtendedSamples:
    """The samples of `sections` of one dataset, one section after the other."""

    sections: Sequence[DatasetSamples]

    def __len__(self) -> int:
        return sum(map(len, self.sections))

    def __getitem__(self, number: int) -> Tokens:
        section, within = self._place(number)
        return section[within]

    def dataset(self, number: int) -> int:
        return 0

    def spans(self, number: int) -> list[Span]:
        section, within = self._place(number)
        return section.spans(within)

    def _place(self, number: int) -> tuple[DatasetSamples, int]:
        within = number
        for section in self.sections:
            if 0 <= within < len(section):
                return section, within
            within -= len(section)
        raise IndexError(number)


@dataclasses.dataclass(frozen=True)
class BlendedSamples:
    """The samples of a weighted blend of datasets."""

    members: Sequence[Samples]
    dataset_index: Tokens
    dataset_sample_index: Tokens

    @classmethod
    def load(cls, members: Sequence[Samples], directory: Path) -> "BlendedSamples":
        return cls(members, *sample_index.load(directory, sample_index.DATASET_INDEX, sample_index.DATASET_SAMPLE_INDEX))

    def __len__(self) -> int:
        return len(self.dataset_index)

    def __getitem__(self, number: int) -> Tokens:
        member = self.members[self.dataset(number)]
        return member[int(self.dataset_sample_index[number])]

    def dataset(self, number: int) -> int:
        return int(self.dataset_index[number])

    def spans(self, number: int) -> list[Span]:
        dataset = self.dataset(number)
        spans = self.members[dataset].spans(int(self.dataset_sample_index[number]))
        return [span._replace(dataset=dataset) for span in spans]
