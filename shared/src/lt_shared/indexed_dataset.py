"""Megatron's memory-mapped indexed dataset, read and written with NumPy alone.

`PREFIX.bin` holds the tokens back to back. `PREFIX.idx` (little endian):

    9 bytes   "MMIDIDX\\0\\0"
    uint64    version, 1
    uint8     dtype code (8 = uint16, 4 = int32, ...)
    uint64    number of sequences S
    uint64    length of the document index, D + 1 for D documents
    int32[S]  tokens of each sequence
    int64[S]  byte offset of each sequence in the .bin
    int64[D+1] first sequence of each document, from 0 to S

Files are byte for byte those of megatron-core's IndexedDatasetBuilder. The reader checks what Megatron's does not: the sizes of
both files. The `.idx` is published last, so a dataset without one was not finished. The writer computes the CRC-32 of both files
from the blocks that it writes, while these are in the processor's cache (0.03 ms for a MB), for the sidecar and for the journal
from which a killed writer resumes.
"""

import contextlib
import dataclasses
import os
import struct
import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from lt_shared import checksums, resumable_files, storage
from lt_shared.checksums import FileChecksum
from lt_shared.console import BadData, NoInput

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPE_CODES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float64, 7: np.float32, 8: np.uint16}
UINT16_VOCABULARY_LIMIT = 65500
CHECKED_AT_ONCE = 1 << 20
COMPOSED_AT_ONCE = 1 << 20
SPOOLED = np.dtype(np.int32)


def dtype_for(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """Megatron's choice: uint16 below 65,500 entries, int32 from there."""
    return np.dtype(np.uint16) if vocab_size < UINT16_VOCABULARY_LIMIT else np.dtype(np.int32)


def bin_path(prefix: str) -> str:
    return f"{prefix}.bin"


def idx_path(prefix: str) -> str:
    return f"{prefix}.idx"


@dataclasses.dataclass(frozen=True)
class Extent:
    """How much of a dataset has been written: numbers of tokens, sequences and documents, and the CRC-32 of each partial file."""

    tokens: int = 0
    sequences: int = 0
    documents: int = 0
    tokens_crc32: int = 0
    lengths_crc32: int = 0
    counts_crc32: int = 0

    def counts(self) -> dict[str, int]:
        return {"tokens": self.tokens, "sequences": self.sequences, "documents": self.documents}


class Writer:
    """Writes one dataset. Use as a context manager: without `publish()` nothing appears.

    An earlier dataset of the same name loses its `.idx` first, so that no moment pairs an old index with new tokens. The index
    grows in temporary files beside the output (8 bytes for a document of one sequence), so that memory is bounded.

    With `resume_from`, for local datasets, what is written stays in partial files when the block ends by an exception. A later
    writer resumes from the last Extent that `sync` returned, if `can_resume` says that it is there; from Extent() it starts over.
    """

    def __init__(self, prefix: str, dtype: npt.DTypeLike, resume_from: Extent | None = None):
        self.prefix = prefix
        self.dtype = np.dtype(dtype)
        self._code = next(code for code, known in DTYPE_CODES.items() if np.dtype(known) == self.dtype)
        self._is_resumable = resume_from is not None
        self._checksums: dict[str, FileChecksum] | None = None
        self.extent = resume_from or Extent()

    def __enter__(self) -> Self:
        # The index is created first although it is written last: its lock keeps a second writer out until both are published.
        with contextlib.ExitStack() as stack:
            self._idx: IO[bytes] = stack.enter_context(storage.publish(idx_path(self.prefix)))
            self._bin_stack = stack.enter_context(contextlib.ExitStack())
            self._spools = stack.enter_context(contextlib.ExitStack())
            if self._is_resumable:
                sizes = _partial_sizes(self.prefix, self.dtype, self.extent)
                (bin_name, bin_size), (lengths_name, lengths_size), (counts_name, counts_size) = sizes.items()
                self._bin: IO[bytes] = self._bin_stack.enter_context(resumable_files.resumable(bin_name, bin_size))
                self._lengths: IO[bytes] = self._spools.enter_context(resumable_files.spool(lengths_name, lengths_size))
                self._counts: IO[bytes] = self._spools.enter_context(resumable_files.spool(counts_name, counts_size))
            else:
                self._bin = self._bin_stack.enter_context(storage.publish(bin_path(self.prefix)))
                directory = None if storage.is_remote(self.prefix) else os.path.dirname(self.prefix) or "."
                self._lengths = self._spools.enter_context(tempfile.TemporaryFile(dir=directory))
                self._counts = self._spools.enter_context(tempfile.TemporaryFile(dir=directory))
            self._stack = stack.pop_all()
        return self

    @property
    def tokens(self) -> int:
        return self.extent.tokens

    @property
    def sequences(self) -> int:
        return self.extent.sequences

    @property
    def documents(self) -> int:
        return self.extent.documents

    def append(
        self,
        tokens: npt.NDArray[np.generic],
        sequence_lengths: npt.NDArray[np.integer],
        sequences_per_document: npt.NDArray[np.integer],
    ) -> None:
        """Append whole documents: `tokens` of shape [sum(sequence_lengths)], cast to the dataset's dtype.

        `sequences_per_document` sums to the number of sequence lengths; a document may have none.
        """
        data = np.ascontiguousarray(tokens, dtype=self.dtype)
        self._bin.write(data.data)
        crc32 = checksums.crc32(data.data, self.extent.tokens_crc32)
        self.extent = dataclasses.replace(self.extent, tokens_crc32=crc32)
        self.append_index(sequence_lengths, sequences_per_document)

    @property
    def bin_file(self) -> IO[bytes]:
        """The .bin that is being written, to copy tokens into it from other files.

        `append_index` then describes them, and `tokens_were_copied` has their checksum.
        """
        return self._bin

    def tokens_were_copied(self, crc32: int, size_bytes: int) -> None:
        """The .bin has grown by `size_bytes` with this CRC-32."""
        crc32 = checksums.joined(self.extent.tokens_crc32, crc32, size_bytes)
        self.extent = dataclasses.replace(self.extent, tokens_crc32=crc32)

    def append_index(self, sequence_lengths: npt.NDArray[np.integer], sequences_per_document: npt.NDArray[np.integer]) -> None:
        """Append to the index only. The two columns may be appended in different steps; only their totals must agree."""
        lengths = np.ascontiguousarray(sequence_lengths, dtype=np.int32).data
        counts = np.ascontiguousarray(sequences_per_document, dtype=np.int32).data
        self._lengths.write(lengths)
        self._counts.write(counts)
        before = self.extent
        self.extent = Extent(
            before.tokens + int(sequence_lengths.sum()),
            before.sequences + len(sequence_lengths),
            before.documents + len(sequences_per_document),
            before.tokens_crc32,
            checksums.crc32(lengths, before.lengths_crc32),
            checksums.crc32(counts, before.counts_crc32),
        )

    def append_document(self, tokens: npt.NDArray[np.generic]) -> None:
        """Append one document of one sequence."""
        self.append(tokens, np.array([len(tokens)]), np.array([1]))

    def sync(self) -> Extent:
        """Make what was appended durable in the partial files; returns how much that is."""
        for file in (self._bin, self._lengths, self._counts):
            resumable_files.sync(file)
        return self.extent

    def complete(self) -> dict[str, FileChecksum]:
        """Compose the index, after which nothing can be appended; returns what a sidecar records of `.bin` and `.idx`."""
        if self._checksums is None:
            tokens = FileChecksum(self.extent.tokens * self.dtype.itemsize, self.extent.tokens_crc32)
            self._checksums = {"bin": tokens, "idx": self._write_index(self._idx)}
        return self._checksums

    def publish(self, sidecar: tuple[str, bytes] | None = None) -> None:
        """Make the dataset visible: `.bin`, then the sidecar (path, content) if given, then `.idx`."""
        self.complete()
        self._bin.flush()
        storage.remove(idx_path(self.prefix))
        if sidecar is not None:
            storage.remove(sidecar[0])
        # The spools are deleted last: while they exist, a later writer knows that the dataset is not fully published.
        with self._spools.pop_all():
            self._bin_stack.close()
            if sidecar is not None:
                storage.write_bytes(*sidecar)
            self._stack.close()

    def _write_index(self, file: IO[bytes]) -> FileChecksum:
        """Compose the index from the two columns, COMPOSED_AT_ONCE entries at a time."""
        written = FileChecksum(0, 0)
        for block in self._index_blocks():
            file.write(block)
            written = FileChecksum(written.size_bytes + len(block), checksums.crc32(block, written.crc32))
        return written

    def _index_blocks(self) -> Iterator[memoryview]:
        yield memoryview(HEADER.pack(MAGIC, VERSION, self._code, self.extent.sequences, self.extent.documents + 1))
        for lengths in _entries(self._lengths):
            yield _bytes_of(lengths)
        start = 0
        for lengths in _entries(self._lengths):
            ends = start + np.cumsum(lengths)
            yield _bytes_of((ends - lengths) * self.dtype.itemsize)
            start = int(ends[-1])
        yield memoryview(bytes(8))
        start = 0
        for counts in _entries(self._counts):
            ends = start + np.cumsum(counts)
            yield _bytes_of(ends)
            start = int(ends[-1])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # After publish() the stack is empty.
        abandoned = error or RuntimeError()
        with contextlib.suppress(RuntimeError):
            self._stack.__exit__(type(abandoned), abandoned, trace)


def _partial_sizes(prefix: str, dtype: np.dtype[Any], extent: Extent) -> dict[str, int]:
    """The outputs that grow in partial files, and the bytes of each."""
    return {
        bin_path(prefix): extent.tokens * dtype.itemsize,
        f"{prefix}.lengths": extent.sequences * SPOOLED.itemsize,
        f"{prefix}.counts": extent.documents * SPOOLED.itemsize,
    }


def can_resume(prefix: str, dtype: npt.DTypeLike, extent: Extent) -> bool:
    """Whether the partial files of an earlier writer begin with what was written up to `extent`; reads them back."""
    expected = (extent.tokens_crc32, extent.lengths_crc32, extent.counts_crc32)
    sizes = _partial_sizes(prefix, np.dtype(dtype), extent)
    return all(resumable_files.holds(name, size, crc32) for (name, size), crc32 in zip(sizes.items(), expected, strict=True))


def is_partial(prefix: str) -> bool:
    """Whether an earlier resumable writer left a dataset that is not published."""
    return resumable_files.exists(f"{prefix}.counts")


def retract_unfinished(prefix: str) -> bool:
    """Undo the publication of a dataset whose writer was killed before all of its files were published; whether there was one."""
    if not is_partial(prefix):
        discard_partial(prefix)
        return False
    storage.remove(idx_path(prefix))
    if not resumable_files.exists(bin_path(prefix)) and os.path.exists(bin_path(prefix)):
        resumable_files.withdraw(bin_path(prefix))
    return True


def discard_partial(prefix: str) -> None:
    """Delete what an earlier resumable writer left."""
    for name in (*_partial_sizes(prefix, np.dtype(np.uint16), Extent()), idx_path(prefix)):
        resumable_files.discard(name)


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return array.view(np.uint8).data


def _entries(file: IO[bytes]) -> Iterator[npt.NDArray[np.int32]]:
    """Blocks of a column that was written to a temporary file: int32 [up to COMPOSED_AT_ONCE]."""
    file.seek(0)
    while data := file.read(COMPOSED_AT_ONCE * SPOOLED.itemsize):
        yield np.frombuffer(data, SPOOLED)


class Reader:
    """A dataset opened for reading; the arrays are memory maps.

    Attributes: `dtype`; `tokens` [T]; `sequence_lengths` int32 [S]; `sequence_offsets` int64 [S], in bytes;
    `document_indices` int64 [D + 1].

    `thorough` checks that every sequence starts where the one before it ends, which takes 2 s for 100 million sequences; without
    it only the sizes of both files are checked.

    Raises: NoInput when a file is missing, BadData when the pair is malformed or truncated.
    """

    def __init__(self, prefix: str, thorough: bool = True):
        storage.require_local(prefix, "reading a dataset through memory maps")
        index = idx_path(prefix)
        for path in (index, bin_path(prefix)):
            if not os.path.isfile(path):
                raise NoInput(f"{path}: no such file", hint_for_missing(prefix))
        with storage.open_read(index) as file:
            header = file.read(HEADER.size)
        if len(header) < HEADER.size or header[: len(MAGIC)] != MAGIC:
            raise BadData(f"{index}: not an index of a Megatron dataset")
        _, version, code, sequences, document_entries = HEADER.unpack(header)
        if version != VERSION or code not in DTYPE_CODES:
            raise BadData(f"{index}: version {version} with dtype code {code} is not known")
        if document_entries == 0:
            raise BadData(f"{index}: its document index is empty")
        self.dtype = np.dtype(DTYPE_CODES[code])
        expected = HEADER.size + 12 * sequences + 8 * document_entries
        actual = os.path.getsize(index)
        if actual not in (expected, expected + sequences):
            raise BadData(f"{index}: {actual} bytes, its header says {expected}", "the file is truncated: write it again")
        columns = np.memmap(index, mode="r")
        start = HEADER.size
        self.sequence_lengths = columns[start : start + 4 * sequences].view(np.int32)
        start += 4 * sequences
        self.sequence_offsets = columns[start : start + 8 * sequences].view(np.int64)
        start += 8 * sequences
        self.document_indices = columns[start : start + 8 * document_entries].view(np.int64)
        if thorough:
            self._check_documents(index, sequences)
        wanted = self._checked_bin_size(index) if thorough else self._bin_size()
        with storage.open_read(bin_path(prefix)) as file:
            size = os.fstat(file.fileno()).st_size
            if size != wanted:
                raise BadData(
                    f"{bin_path(prefix)}: {size} bytes, its index says {wanted}", "the file is truncated: write it again"
                )
            self.tokens = np.memmap(file, mode="r", dtype=self.dtype) if size else np.zeros(0, self.dtype)

    def _check_documents(self, index: str, sequences: int) -> None:
        documents = self.document_indices
        if not len(documents) or documents[0] != 0 or documents[-1] != sequences or bool((documents[1:] < documents[:-1]).any()):
            raise BadData(f"{index}: its document index does not fit its {sequences} sequences")

    def _checked_bin_size(self, index: str) -> int:
        """Bytes of the .bin, after checking in blocks of bounded memory that every sequence starts where the last one ends."""
        end = 0
        for start in range(0, len(self.sequence_lengths), CHECKED_AT_ONCE):
            sizes = self.sequence_lengths[start : start + CHECKED_AT_ONCE].astype(np.int64) * self.dtype.itemsize
            ends = end + np.cumsum(sizes)
            if bool((sizes < 0).any()) or not np.array_equal(
                ends - sizes, self.sequence_offsets[start : start + CHECKED_AT_ONCE]
            ):
                raise BadData(f"{index}: its sequence index is malformed")
            end = int(ends[-1])
        return end

    def _bin_size(self) -> int:
        """Bytes of the .bin according to the last entry of the index."""
        if not len(self.sequence_lengths):
            return 0
        return int(self.sequence_offsets[-1]) + int(self.sequence_lengths[-1]) * self.dtype.itemsize

    @property
    def documents(self) -> int:
        return len(self.document_indices) - 1

    def document(self, number: int) -> npt.NDArray[np.generic]:
        """The tokens of one document, all its sequences joined, shape [length]."""
        first, last = self.document_indices[number : number + 2]
        if first == last:
            return self.tokens[:0]
        start = self.sequence_offsets[first] // self.dtype.itemsize
        return self.tokens[start : start + int(self.sequence_lengths[first:last].sum())]


def hint_for_missing(prefix: str) -> str:
    """The hint for a dataset without its .bin or .idx."""
    if prefix.endswith((".bin", ".idx")):
        return f"a prefix has no extension: {prefix[:-4]}"
    if os.path.isfile(bin_path(prefix)):
        return "the dataset was not finished: run its lt-preprocess command again"
    if os.path.isfile(idx_path(f"{prefix}_text_document")):
        return f"did you mean {prefix}_text_document?"
    return "a dataset is PREFIX.bin and PREFIX.idx"
