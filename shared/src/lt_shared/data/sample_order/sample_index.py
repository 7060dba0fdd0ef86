"""The tokens of sample `i`: Megatron-LM's three indices of a dataset and its blending index, byte for byte.

    document index   int32 [E]       the sequences in the order of reading, each epoch shuffled
    sample index     int32 [N+1, 2]  first token of each sample: entry of the document index and offset in the sequence
    shuffle index    uint32 [N]      the order of the samples

A sample is sequence_length + 1 tokens; the last one is also the first of the next sample. The indices depend on the lengths of
the sequences, the seed and the sizes alone. megatron-core builds them in C++ and holds four int64 arrays of all sequences. Here
each length travels in the upper half of an int64 with its number in the lower, through one shuffle of NumPy's generator, which
gives Megatron's order; after that everything is read in order, in blocks. 100 million sequences take 12 s and 2.2 GiB.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from lt_shared.console import BadData
from lt_shared.files import checksums, mapping, storage
from lt_shared.files.checksums import FileChecksums

Integers = npt.NDArray[np.integer[Any]]

DOCUMENT_INDEX, SAMPLE_INDEX, SHUFFLE_INDEX = "document_index.npy", "sample_index.npy", "shuffle_index.npy"
DATASET_INDEX, DATASET_SAMPLE_INDEX = "dataset_index.npy", "dataset_sample_index.npy"
# The last epoch is shuffled separately if the run needs less than this fraction of the epoch.
WHOLE_EPOCH = 0.80
REMADE = "delete the directory: it will be made again"
SEQUENCES_AT_ONCE = 1 << 22
NUMBER_BITS = 32
NUMBER_MASK = (1 << NUMBER_BITS) - 1


@dataclasses.dataclass(frozen=True)
class Reading:
    """The parameters of an index over sequences `first` to before `last`, with `tokens` in all, for at least `samples` samples.

    `seed` is the run's seed. For a run that has become longer, it is a pair with the number of epochs that were read before.
    """

    first: int
    last: int
    tokens: int
    samples: int
    sequence_length: int
    seed: int | tuple[int, int]

    @property
    def epochs(self) -> int:
        return max(1, -(-(self.samples * self.sequence_length + 1) // self.tokens))

    @property
    def separate_epochs(self) -> int:
        """Epochs before the one that is shuffled for itself; 0 when all are shuffled together."""
        before = self.samples_in(self.epochs - 1)
        partial = self.epochs > 1 and self.samples - before < int(WHOLE_EPOCH * self.samples_in(1))
        return self.epochs - 1 if partial else 0

    @property
    def all_samples(self) -> int:
        """Samples in whole epochs: as many as asked for, or more."""
        return self.samples_in(self.epochs)

    def samples_in(self, epochs: int) -> int:
        return (epochs * self.tokens - 1) // self.sequence_length


def write(directory: Path, lengths: Integers, reading: Reading) -> None:
    """Write the three indices of a dataset whose sequences have `lengths` into `directory`."""
    state = np.random.RandomState(reading.seed)
    # NumPy shuffles a subclass of its array, such as a memory map, 80 times as slowly.
    packed = lengths[reading.first : reading.last].astype(np.int64, subok=False)
    packed <<= NUMBER_BITS
    packed |= np.arange(reading.first, reading.last)
    parts = [reading.separate_epochs, reading.epochs - reading.separate_epochs]
    orders = [np.tile(packed, epochs) for epochs in parts if epochs]
    del packed
    for order in orders:
        state.shuffle(order)
    samples = reading.all_samples
    _write_order(directory, orders, reading, samples)
    del orders
    kind = np.dtype(np.int64 if samples >= np.iinfo(np.uint32).max - 1 else np.uint32)
    boundaries = [reading.samples_in(reading.separate_epochs), samples] if reading.separate_epochs else [samples]
    with _create(directory / SHUFFLE_INDEX, kind, (samples,)) as file:
        for first, last in zip([0, *boundaries], boundaries, strict=False):
            shuffled = np.arange(first, last, dtype=kind)
            state.shuffle(shuffled)
            file.write(shuffled.data)
    _record_checksums(directory)


def _write_order(directory: Path, orders: list[npt.NDArray[np.int64]], reading: Reading, samples: int) -> None:
    """The document index, and where sample k begins: in the sequence that has token k * sequence_length of the reading."""
    entries = sum(map(len, orders))
    kind = np.dtype(np.int32 if entries <= np.iinfo(np.int32).max else np.int64)
    rows, entry, tokens = 1, 0, 0
    with (
        _create(directory / DOCUMENT_INDEX, np.dtype(np.int32), (entries,)) as document_file,
        _create(directory / SAMPLE_INDEX, kind, (samples + 1, 2)) as sample_file,
    ):
        # Megatron's first sample begins in the first sequence even if that is empty.
        sample_file.write(np.zeros((1, 2), kind).data)
        for block in _blocks(orders):
            document_file.write((block & NUMBER_MASK).astype(np.int32).data)
            lengths = block >> NUMBER_BITS
            ends = tokens + np.cumsum(lengths)
            last = min(samples, (int(ends[-1]) - 1) // reading.sequence_length)
            begins = np.arange(rows, last + 1) * reading.sequence_length
            within = np.searchsorted(ends, begins, side="right")
            offsets = begins - (ends - lengths)[within]
            sample_file.write(np.stack((within + entry, offsets), axis=1).astype(kind).data)
            rows, entry, tokens = max(rows, last + 1), entry + len(block), int(ends[-1])


@dataclasses.dataclass(frozen=True)
class Stretch:
    """`samples` samples from token `begin` on of the endless stream of sequences `first` to before `last`, which have `tokens`.

    `number` is the phase's number. It decides the samples' order, together with the seed.
    """

    first: int
    last: int
    tokens: int
    begin: int
    samples: int
    sequence_length: int
    seed: int
    number: int

    @property
    def epochs(self) -> range:
        """The epochs that this stretch has tokens of."""
        return range(self.begin // self.tokens, (self.begin + self.samples * self.sequence_length) // self.tokens + 1)


def write_stretch(directory: Path, lengths: Integers, stretch: Stretch) -> None:
    """Write the three indices of a stretch into `directory`. Each epoch is shuffled by a generator of its own."""
    packed = lengths[stretch.first : stretch.last].astype(np.int64, subok=False)
    packed <<= NUMBER_BITS
    packed |= np.arange(stretch.first, stretch.last)
    entries = len(packed) * len(stretch.epochs)
    kind = np.dtype(np.int32 if entries <= np.iinfo(np.int32).max else np.int64)
    row, entry, tokens = 0, 0, stretch.epochs[0] * stretch.tokens
    with (
        _create(directory / DOCUMENT_INDEX, np.dtype(np.int32), (entries,)) as document_file,
        _create(directory / SAMPLE_INDEX, kind, (stretch.samples + 1, 2)) as sample_file,
    ):
        for epoch in stretch.epochs:
            order = packed.copy()
            np.random.RandomState([stretch.seed, epoch]).shuffle(order)
            for block in _blocks([order]):
                document_file.write((block & NUMBER_MASK).astype(np.int32).data)
                sizes = block >> NUMBER_BITS
                ends = tokens + np.cumsum(sizes)
                last = min(stretch.samples, (int(ends[-1]) - 1 - stretch.begin) // stretch.sequence_length)
                begins = stretch.begin + np.arange(row, last + 1) * stretch.sequence_length
                within = np.searchsorted(ends, begins, side="right")
                rows = np.stack((within + entry, begins - (ends - sizes)[within]), axis=1)
                sample_file.write(rows.astype(kind).data)
                row, entry, tokens = max(row, last + 1), entry + len(block), int(ends[-1])
    order_of_samples = np.arange(stretch.samples, dtype=np.uint32 if stretch.samples < np.iinfo(np.uint32).max else np.int64)
    np.random.RandomState([stretch.seed, stretch.number, 1]).shuffle(order_of_samples)
    with _create(directory / SHUFFLE_INDEX, order_of_samples.dtype, order_of_samples.shape) as file:
        file.write(order_of_samples.data)
    _record_checksums(directory)


def _blocks(orders: list[npt.NDArray[np.int64]]) -> Iterator[npt.NDArray[np.int64]]:
    for order in orders:
        for start in range(0, len(order), SEQUENCES_AT_ONCE):
            yield order[start : start + SEQUENCES_AT_ONCE]


@contextlib.contextmanager
def _create(path: Path, kind: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[IO[bytes]]:
    """A .npy file of `shape` to be filled in the block, synced to disk at its end."""
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_packed(directory: Path, order: Integers) -> None:
    """Write the numbers of the sequences that are samples themselves, in their order."""
    with _create(directory / DOCUMENT_INDEX, order.dtype, order.shape) as file:
        file.write(np.ascontiguousarray(order).data)
    _record_checksums(directory)


def draw_blend(weights: Any, datasets: Any, numbers: Any) -> None:
    """Fill [N] `datasets` and `numbers`: each sample is the next one of the dataset that is furthest behind its share.

    The first of equals wins. Plain loops, which numba compiles where it is at hand.
    """
    drawn = np.zeros(len(weights), np.int64)
    for sample in range(len(datasets)):
        share = max(float(sample), 1.0)
        furthest, most = 0, weights[0] * share - drawn[0]
        for dataset in range(1, len(weights)):
            behind = weights[dataset] * share - drawn[dataset]
            if behind > most:
                furthest, most = dataset, behind
        datasets[sample] = furthest
        numbers[sample] = drawn[furthest]
        drawn[furthest] += 1


def write_blend(directory: Path, weights: list[float], samples: int, draw: Callable[..., None] = draw_blend) -> None:
    """Write the index that draws `samples` samples from datasets in the proportion of `weights` (summing to 1).

    `draw` is `draw_blend` or a compiled version.
    """
    datasets, numbers = np.zeros(samples, np.int16), np.zeros(samples, np.int64)
    draw(np.array(weights), datasets, numbers)
    for name, array in ((DATASET_INDEX, datasets), (DATASET_SAMPLE_INDEX, numbers)):
        with _create(directory / name, array.dtype, array.shape) as file:
            file.write(array.data)
    _record_checksums(directory)


def _record_checksums(directory: Path) -> None:
    ranges = {path.name: ((path.stat().st_size, checksums.crc32_of_path(path)),) for path in sorted(directory.glob("*.npy"))}
    storage.write_bytes(directory / FileChecksums.NAME, FileChecksums(ranges).to_bytes())


def check(directory: Path) -> None:
    """Raises BadData when an index is not as it was written. Those made before 2026-11-23 have no checksums.

    The indices of 100 million sequences are read in 0.3 s from the page cache.
    """
    recorded = FileChecksums.read(directory)
    if recorded is None:
        return
    try:
        for name in recorded.ranges:
            recorded.check_file(directory, name)
    except BadData as error:
        raise BadData(f"a damaged sample index: {error}", REMADE) from None


def load(directory: Path, *names: str) -> list[npt.NDArray[Any]]:
    """Memory maps of the named indices. Raises BadData when one is damaged."""
    try:
        return [mapping.mapped_npy(directory / name) for name in names]
    except ValueError as error:
        raise BadData(f"{directory}: a damaged sample index: {error}", REMADE) from None
