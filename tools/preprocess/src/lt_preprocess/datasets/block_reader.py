"""Read a finished dataset in blocks of whole documents, for commands whose memory must not grow with the dataset.

`indexed_dataset.Reader` maps both files into memory, which is right for looking documents up. Here the columns of the index are
read side by side with plain reads: the index of 100 million documents has 2 GB, and a block takes at most
`SEQUENCES_AT_ONCE` x 30 bytes. Reading works on any filesystem, remote ones included, and checks what the Reader checks.
"""

import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lt_shared.console import BadData, NoInput
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset
from lt_shared.data.indexed_dataset import DTYPE_CODES, HEADER, MAGIC, VERSION, bin_path, idx_path
from lt_shared.files import checksums, storage

SEQUENCES_AT_ONCE = 1 << 20
DOCUMENTS_AT_ONCE = 1 << 18

Lengths = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.generic]


class Column(NamedTuple):
    """A column of an index: `length` entries from byte `start`."""

    start: int
    dtype: np.dtype[Any]
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length * self.dtype.itemsize


class Header(NamedTuple):
    """The header of an index. `document_entries` is the number of documents + 1."""

    magic: bytes
    version: int
    dtype_code: int
    sequences: int
    document_entries: int

    @property
    def lengths(self) -> Column:
        return Column(HEADER.size, np.dtype(np.int32), self.sequences)

    @property
    def offsets(self) -> Column:
        return Column(self.lengths.end, np.dtype(np.int64), self.sequences)

    @property
    def entries(self) -> Column:
        """The document index."""
        return Column(self.offsets.end, np.dtype(np.int64), self.document_entries)

    @property
    def end(self) -> int:
        return self.entries.end


def read_header(file: IO[bytes]) -> Header | None:
    """The header, or None when the file is shorter than one."""
    data = file.read(HEADER.size)
    return Header(*HEADER.unpack(data)) if len(data) == HEADER.size else None


def read_column(file: IO[bytes], column: Column, first: int, last: int) -> npt.NDArray[Any]:
    """Entries `first` to `last` of a column; fewer where the file ends."""
    itemsize = column.dtype.itemsize
    file.seek(column.start + first * itemsize)
    data = file.read((last - first) * itemsize)
    return np.frombuffer(data[: len(data) // itemsize * itemsize], column.dtype)


class Block(NamedTuple):
    """Whole documents that follow one another. Lengths are in tokens; `first_token` counts from the start of the dataset."""

    first_document: int
    first_token: int
    sequence_lengths: Lengths
    sequences_per_document: Counts

    @property
    def documents(self) -> int:
        return len(self.sequences_per_document)

    @property
    def tokens(self) -> int:
        return int(self.sequence_lengths.sum(dtype=np.int64))

    @property
    def bounds(self) -> Counts:
        """Return the documents' first tokens as indices in the block, and the end of the last document, int64 [documents + 1]."""
        return bounds_of(self.sequence_lengths)[bounds_of(self.sequences_per_document)]


def bounds_of(lengths: npt.NDArray[np.integer]) -> Counts:
    """Return the offsets of consecutive items with these lengths, and the end of the last item, int64 [items + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


class Documents(NamedTuple):
    """Whole documents with their tokens, as `indexed_dataset.Writer.append` takes them."""

    sequences_per_document: Counts
    sequence_lengths: Lengths
    tokens: Tokens

    @classmethod
    def joined(cls, pieces: Sequence[Self]) -> Self:
        return cls(*(np.concatenate(column) for column in zip(*pieces, strict=True)))

    @property
    def bounds(self) -> Counts:
        """Like `Block.bounds`."""
        return bounds_of(self.sequence_lengths)[bounds_of(self.sequences_per_document)]

    def taken(self, numbers: Counts) -> "Documents":
        """The documents of the given numbers, in that order."""
        sequences = bounds_of(self.sequences_per_document)
        return Documents(
            self.sequences_per_document[numbers],
            _gather(self.sequence_lengths, sequences, numbers),
            _gather(self.tokens, self.bounds, numbers),
        )


def _gather(data: npt.NDArray[Any], bounds: Counts, numbers: Counts) -> npt.NDArray[Any]:
    """data[bounds[i]:bounds[i + 1]] of every i in `numbers`, back to back. Slices of bytes: 0.3 us each."""
    view = np.ascontiguousarray(data).view(np.uint8).data
    starts, ends = bounds[numbers] * data.itemsize, bounds[numbers + 1] * data.itemsize
    pieces = [view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.frombuffer(b"".join(pieces), data.dtype)


class Shape(NamedTuple):
    """How large a dataset is, and what its tokens are."""

    documents: int
    sequences: int
    tokens: int
    dtype: np.dtype[Any]

    @property
    def size_bytes(self) -> int:
        return self.tokens * self.dtype.itemsize


class BlockReader:
    """Opens the dataset at `prefix`; a context manager.

    Raises: NoInput when a file is missing, BadData when the pair is malformed or truncated, here or while blocks are read.
    """

    def __init__(self, prefix: str):
        self.prefix = prefix
        for path in (idx_path(prefix), bin_path(prefix)):
            if not storage.exists(path):
                raise NoInput(f"{path}: no such file", indexed_dataset.hint_for_missing(prefix))
        with contextlib.ExitStack() as stack:
            self._idx: IO[bytes] = stack.enter_context(storage.open_read(idx_path(prefix)))
            self._bin: IO[bytes] = stack.enter_context(storage.open_read(bin_path(prefix)))
            self._header = self._checked_header()
            self._check_bin_size()
            self._stack = stack.pop_all()

    def _checked_header(self) -> Header:
        path = idx_path(self.prefix)
        header = read_header(self._idx)
        if header is None or header.magic != MAGIC:
            raise BadData(f"{path}: not an index of a Megatron dataset")
        if header.version != VERSION or header.dtype_code not in DTYPE_CODES:
            raise BadData(f"{path}: version {header.version} with dtype code {header.dtype_code} is not known")
        self.dtype: np.dtype[Any] = np.dtype(DTYPE_CODES[header.dtype_code])
        size = storage.size_bytes(path)
        if size == header.end + header.sequences and header.sequences:
            raise BadData(f"{path}: a multimodal dataset (its sequences have modes)", "only datasets of text are worked on here")
        if size != header.end:
            raise BadData(f"{path}: {size} bytes, its header says {header.end}", "lt-preprocess verify lists all that is wrong")
        if not header.document_entries:
            raise BadData(f"{path}: its document index is empty")
        first = read_column(self._idx, header.entries, 0, 1)
        last = read_column(self._idx, header.entries, header.document_entries - 1, header.document_entries)
        if (int(first[0]), int(last[0])) != (0, header.sequences):
            raise BadData(f"{path}: its document index does not fit its {header.sequences} sequences")
        return header

    def _check_bin_size(self) -> None:
        end = self._header.sequences
        self.size_bytes = storage.size_bytes(bin_path(self.prefix))
        expected = 0
        if end:
            offset = read_column(self._idx, self._header.offsets, end - 1, end)
            length = read_column(self._idx, self._header.lengths, end - 1, end)
            expected = int(offset[0]) + int(length[0]) * self.dtype.itemsize
        if self.size_bytes != expected:
            raise BadData(
                f"{bin_path(self.prefix)}: {self.size_bytes} bytes, its index says {expected}",
                "the file is truncated, or belongs to another index",
            )

    @property
    def documents(self) -> int:
        return self._header.document_entries - 1

    @property
    def sequences(self) -> int:
        return self._header.sequences

    @property
    def tokens(self) -> int:
        return self.size_bytes // self.dtype.itemsize

    @property
    def shape(self) -> Shape:
        return Shape(self.documents, self.sequences, self.tokens, self.dtype)

    def blocks(self, tokens_at_once: int | None = None, first: int = 0, last: int | None = None) -> Iterator[Block]:
        """All documents in order, or `first` to `last`; a block has at most `tokens_at_once` tokens, or one longer document."""
        last = self.documents if last is None else min(last, self.documents)
        end: int | None = 0 if first == 0 else None
        for start in range(first, last, DOCUMENTS_AT_ONCE):
            entries = self._column(self._header.entries, start, min(start + DOCUMENTS_AT_ONCE, last) + 1)
            if bool((entries[1:] < entries[:-1]).any()) or entries[0] < 0 or entries[-1] > self.sequences:
                raise BadData(f"{idx_path(self.prefix)}: its document index does not fit its {self.sequences} sequences")
            for low, high in _groups(entries, SEQUENCES_AT_ONCE):
                block = self._block(start + low, entries[low : high + 1], end)
                if end is not None or len(block.sequence_lengths):
                    end = block.first_token + block.tokens
                yield from [block] if tokens_at_once is None else _smaller(block, tokens_at_once)

    def _column(self, column: Column, first: int, last: int) -> npt.NDArray[Any]:
        entries = read_column(self._idx, column, first, last)
        if len(entries) != last - first:
            raise BadData(f"{idx_path(self.prefix)}: was cut off while it was read")
        return entries

    def _block(self, first_document: int, entries: Counts, end: int | None) -> Block:
        """Read one block; `end` is the token where the block before ended, if there was one."""
        first, last = int(entries[0]), int(entries[-1])
        lengths = self._column(self._header.lengths, first, last)
        offsets = self._column(self._header.offsets, first, last)
        sizes = lengths.astype(np.int64)
        start = end if end is not None else int(offsets[0]) // self.dtype.itemsize if len(offsets) else 0
        expected = (start + np.cumsum(sizes) - sizes) * self.dtype.itemsize
        if bool((sizes < 0).any()) or not np.array_equal(expected, offsets):
            raise BadData(
                f"{idx_path(self.prefix)}: its sequence index is malformed", "lt-preprocess verify lists all that is wrong"
            )
        return Block(first_document, start, lengths, np.diff(entries))

    def read(self, block: Block) -> Tokens:
        """The tokens of a block, shape [its tokens]."""
        self._bin.seek(block.first_token * self.dtype.itemsize)
        data = self._bin.read(block.tokens * self.dtype.itemsize)
        if len(data) != block.tokens * self.dtype.itemsize:
            raise BadData(f"{bin_path(self.prefix)}: was cut off while it was read")
        return np.frombuffer(data, self.dtype)

    def whole(self, tokens_at_once: int) -> Iterator[Documents]:
        """All documents in order, in blocks as `blocks` makes them.

        Raises BadData after the last block if the dataset's files differ from their sidecar's record: a dataset derived from them
        would have new checksums, which hide the damage.
        """
        crc32 = {"bin": 0, "idx": 0}
        for block in self.blocks(tokens_at_once):
            documents = self.read_documents(block)
            crc32["bin"] = checksums.crc32(documents.tokens.data, crc32["bin"])
            yield documents
        self._idx.seek(0)
        crc32["idx"] = checksums.crc32_of_file(self._idx)
        for ending, recorded in (manifest.recorded_checksums(self.prefix) or {}).items():
            if difference := recorded.difference(crc32[ending]):
                raise BadData(
                    f"{self.prefix}.{ending}: {difference}", "make the dataset again, or copy it again from where it is whole"
                )

    def read_documents(self, block: Block) -> Documents:
        return Documents(block.sequences_per_document, block.sequence_lengths, self.read(block))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()


def _groups(ends: Counts, limit: int) -> Iterator[tuple[int, int]]:
    """Group the intervals between entries of `ends` (ascending) into runs up to `limit`; a larger interval is a run by itself."""
    low = 0
    while low < len(ends) - 1:
        high = max(low + 1, int(np.searchsorted(ends, ends[low] + limit, side="right")) - 1)
        yield low, high
        low = high


def _smaller(block: Block, tokens_at_once: int) -> Iterator[Block]:
    bounds, sequences = block.bounds, bounds_of(block.sequences_per_document)
    for low, high in _groups(bounds, tokens_at_once):
        yield Block(
            block.first_document + low,
            block.first_token + int(bounds[low]),
            block.sequence_lengths[sequences[low] : sequences[high]],
            block.sequences_per_document[low:high],
        )
