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
both files. The `.idx` is published last, so a dataset without one was not finished.
"""

import contextlib
import os
import struct
from types import TracebackType
from typing import IO, Self

import numpy as np
import numpy.typing as npt

from lt_shared import storage
from lt_shared.console import BadData, NoInput

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPE_CODES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float64, 7: np.float32, 8: np.uint16}
UINT16_VOCABULARY_LIMIT = 65500
CHECKED_AT_ONCE = 1 << 20


def dtype_for(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """Megatron's choice: uint16 below 65,500 entries, int32 from there."""
    return np.dtype(np.uint16) if vocab_size < UINT16_VOCABULARY_LIMIT else np.dtype(np.int32)


def bin_path(prefix: str) -> str:
    return f"{prefix}.bin"


def idx_path(prefix: str) -> str:
    return f"{prefix}.idx"


class Writer:
    """Writes one dataset. Use as a context manager: without `publish()` nothing appears.

    An earlier dataset of the same name loses its `.idx` first, so that no moment pairs an old index with new tokens.
    """

    def __init__(self, prefix: str, dtype: npt.DTypeLike):
        self.prefix = prefix
        self.dtype = np.dtype(dtype)
        self._code = next(code for code, known in DTYPE_CODES.items() if np.dtype(known) == self.dtype)
        self._sequence_lengths: list[npt.NDArray[np.int32]] = []
        self._sequences_per_document: list[npt.NDArray[np.int64]] = []
        self.tokens = 0
        self.sequences = 0
        self.documents = 0

    def __enter__(self) -> Self:
        # The index is created first although it is written last: its lock keeps a second writer out until both are published.
        with contextlib.ExitStack() as stack:
            self._idx: IO[bytes] = stack.enter_context(storage.publish(idx_path(self.prefix)))
            self._bin_stack = stack.enter_context(contextlib.ExitStack())
            self._bin: IO[bytes] = self._bin_stack.enter_context(storage.publish(bin_path(self.prefix)))
            self._stack = stack.pop_all()
        self._published = False
        return self

    def append(
        self,
        tokens: npt.NDArray[np.generic],
        sequence_lengths: npt.NDArray[np.integer],
        sequences_per_document: npt.NDArray[np.integer],
    ) -> None:
        """Append whole documents: `tokens` of shape [sum(sequence_lengths)], cast to the dataset's dtype.

        `sequences_per_document` sums to the number of sequence lengths; a document may have none.
        """
        self._bin.write(np.ascontiguousarray(tokens, dtype=self.dtype).data)
        self.append_index(sequence_lengths, sequences_per_document)

    @property
    def bin_file(self) -> IO[bytes]:
        """The .bin that is being written, for tokens that are copied from other files; `append_index` says what they are."""
        return self._bin

    def append_index(
        self, sequence_lengths: npt.NDArray[np.integer], sequences_per_document: npt.NDArray[np.integer]
    ) -> None:
        """Append to the index alone. The two columns may come in steps of their own: what counts is their whole."""
        self._sequence_lengths.append(np.asarray(sequence_lengths, dtype=np.int32))
        self._sequences_per_document.append(np.asarray(sequences_per_document, dtype=np.int64))
        self.tokens += int(sequence_lengths.sum(dtype=np.int64))
        self.sequences += len(sequence_lengths)
        self.documents += len(sequences_per_document)

    def append_document(self, tokens: npt.NDArray[np.generic]) -> None:
        """Append one document of one sequence."""
        self.append(tokens, np.array([len(tokens)]), np.array([1]))

    def publish(self, sidecar: tuple[str, bytes] | None = None) -> None:
        """Make the dataset visible: `.bin`, then the sidecar (path, content) if given, then `.idx`."""
        self._write_index(self._idx)
        self._bin.flush()
        storage.remove(idx_path(self.prefix))
        if sidecar is not None:
            storage.remove(sidecar[0])
        self._bin_stack.close()
        if sidecar is not None:
            storage.write_bytes(*sidecar)
        self._stack.close()
        self._published = True

    def _write_index(self, file: IO[bytes]) -> None:
        lengths = np.concatenate([np.zeros(0, np.int32), *self._sequence_lengths])
        counts = np.concatenate([np.zeros(1, np.int64), *self._sequences_per_document])
        pointers = np.zeros(len(lengths), np.int64)
        np.cumsum(lengths[:-1], dtype=np.int64, out=pointers[1:])
        pointers *= self.dtype.itemsize
        file.write(HEADER.pack(MAGIC, VERSION, self._code, len(lengths), len(counts)))
        for column in (lengths, pointers, np.cumsum(counts)):
            file.write(column.data)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._published:
            return
        abandoned = error or RuntimeError("closed without publish()")
        with contextlib.suppress(RuntimeError):
            self._stack.__exit__(type(abandoned), abandoned, trace)


class Reader:
    """A dataset opened for reading; the arrays are memory maps.

    Attributes: `dtype`; `tokens` [T]; `sequence_lengths` int32 [S]; `sequence_offsets` int64 [S], in bytes;
    `document_indices` int64 [D + 1].

    Raises: NoInput when a file is missing, BadData when the pair is malformed or truncated.
    """

    def __init__(self, prefix: str):
        storage.require_local(prefix, "reading a dataset through memory maps")
        index = idx_path(prefix)
        for path in (index, bin_path(prefix)):
            if not os.path.isfile(path):
                raise NoInput(f"{path}: no such file", _hint_for_missing(prefix))
        with storage.open_read(index) as file:
            header = file.read(HEADER.size)
        if len(header) < HEADER.size or header[: len(MAGIC)] != MAGIC:
            raise BadData(f"{index}: not an index of a Megatron dataset")
        _, version, code, sequences, document_entries = HEADER.unpack(header)
        if version != VERSION or code not in DTYPE_CODES:
            raise BadData(f"{index}: version {version} with dtype code {code} is not known")
        self.dtype = np.dtype(DTYPE_CODES[code])
        expected = HEADER.size + 12 * sequences + 8 * document_entries
        actual = os.path.getsize(index)
        if actual not in (expected, expected + sequences):
            raise BadData(f"{index}: {actual} bytes, its header says {expected}", "the file is truncated: write it again")
        columns = np.memmap(index, mode="r", dtype=np.uint8)
        start = HEADER.size
        self.sequence_lengths = columns[start : start + 4 * sequences].view(np.int32)
        start += 4 * sequences
        self.sequence_offsets = columns[start : start + 8 * sequences].view(np.int64)
        start += 8 * sequences
        self.document_indices = columns[start : start + 8 * document_entries].view(np.int64)
        self._check_documents(index, sequences)
        wanted = self._checked_bin_size(index)
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

    @property
    def documents(self) -> int:
        return len(self.document_indices) - 1

    def document(self, number: int) -> npt.NDArray[np.generic]:
        """The tokens of one document, all its sequences joined, shape [length]."""
        first, last = self.document_indices[number : number + 2]
        if first == last:
            return self.tokens[:0]
        start = self.sequence_offsets[first] // self.dtype.itemsize
        return self.tokens[start : start + int(self.sequence_lengths[first:last].sum(dtype=np.int64))]


def _hint_for_missing(prefix: str) -> str:
    if prefix.endswith((".bin", ".idx")):
        return f"a prefix has no extension: {prefix[:-4]}"
    if os.path.isfile(bin_path(prefix)):
        return "the dataset was not finished: run its lt-preprocess command again"
    if os.path.isfile(idx_path(f"{prefix}_text_document")):
        return f"did you mean {prefix}_text_document?"
    return "a dataset is PREFIX.bin and PREFIX.idx"
