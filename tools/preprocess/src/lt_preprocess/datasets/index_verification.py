"""Verify the index of a dataset column by column, in blocks, and the size of its tokens."""

import dataclasses
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.datasets.block_reader import Column, Header, read_column, read_header
from lt_shared.console import BadData, counted
from lt_shared.data.indexed_dataset import DTYPE_CODES, HEADER, MAGIC, VERSION, bin_path, idx_path
from lt_shared.files import storage

ENTRIES_AT_ONCE = 1 << 20


class Finding(NamedTuple):
    """A defect: the file and a description."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclasses.dataclass
class Verification:
    """The result for one dataset; `documents`, `tokens` and `sequences` are None where they cannot be determined."""

    prefix: str
    documents: int | None = None
    tokens: int | None = None
    sequences: int | None = None
    findings: list[Finding] = dataclasses.field(default_factory=list)
    changed: list[Finding] = dataclasses.field(default_factory=list)
    """Findings about files that are sound but differ from the written files; they move to `findings` at the end."""

    def find(self, path: str, message: str) -> None:
        self.findings.append(Finding(path, message))

    def summary(self) -> str:
        if self.findings:
            return counted(len(self.findings), "finding")
        return f"{counted(self.documents or 0, 'document')}, {counted(self.tokens or 0, 'token')}, nothing wrong"

    def to_record(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "v": 1,
            "kind": "verification",
            "prefix": self.prefix,
            "documents": self.documents,
            "tokens": self.tokens,
            "findings": [finding._asdict() for finding in self.findings],
        }


def check_index(prefix: str, result: Verification) -> np.dtype[Any] | None:
    """Check the index and the size of the tokens; returns the dtype of the tokens, None when that is not known."""
    path = idx_path(prefix)
    with storage.open_read(path) as file:
        header = read_header(file)
        if header is None:
            result.find(path, f"{storage.size_bytes(path)} bytes, too short for a header of {HEADER.size}")
            return None
        if header.magic != MAGIC:
            result.find(path, f"begins with {header.magic!r}, not with {MAGIC!r}: not an index of a Megatron dataset")
            return None
        if header.version != VERSION:
            result.find(path, f"version {header.version}, known is {VERSION}")
        dtype = np.dtype(DTYPE_CODES[header.dtype_code]) if header.dtype_code in DTYPE_CODES else None
        if dtype is None:
            result.find(path, f"dtype code {header.dtype_code} is not known")
        elif dtype.kind != "i" and dtype.kind != "u":
            result.find(path, f"tokens are {dtype}, expected whole numbers")
        if _check_index_size(path, header, result):
            result.documents = header.document_entries - 1
            result.sequences = header.sequences
            sizes = _check_sequences(path, file, header, dtype, result)
            _check_documents(path, file, header, result)
            result.tokens = sizes
    if dtype is not None and result.tokens is not None and storage.exists(bin_path(prefix)):
        _check_bin_size(prefix, result.tokens * dtype.itemsize, result)
    return dtype


def _check_index_size(path: str, header: Header, result: Verification) -> bool:
    """Whether the columns are where the header says; False when they end too early to be looked at."""
    size = storage.size_bytes(path)
    if size == header.end + header.sequences and header.sequences:
        raise BadData(f"{path}: a multimodal dataset (its sequences have modes)", "only datasets of text are worked on here")
    if size < header.end:
        result.find(
            path,
            f"{size} bytes, its header says {header.end} ({header.sequences} sequences, {header.document_entries} document "
            "entries): it is truncated",
        )
        return False
    if size > header.end:
        result.find(path, f"{size - header.end} bytes are left over after the document index")
    return True


def column_blocks(file: IO[bytes], column: Column) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    for first in range(0, column.length, ENTRIES_AT_ONCE):
        yield first, read_column(file, column, first, min(first + ENTRIES_AT_ONCE, column.length))


class DefectCount:
    """Counts the defects of a kind and keeps the first."""

    first: str

    def __init__(self) -> None:
        self.count = 0

    def add(self, wrong: npt.NDArray[np.bool_], describe: Any) -> None:
        """Count the true entries of `wrong`. `describe` formats the defect at an index."""
        defects = int(np.count_nonzero(wrong))
        if defects and not self.count:
            self.first = describe(int(np.argmax(wrong)))
        self.count += defects

    def report(self, path: str, what: str, result: Verification) -> None:
        if self.count:
            more = f", the first of {self.count:,}" if self.count > 1 else ""
            result.find(path, f"{what}: {self.first}{more}")


def _check_sequences(path: str, file: IO[bytes], header: Header, dtype: np.dtype[Any] | None, result: Verification) -> int | None:
    """Check lengths and offsets. Returns the number of tokens, or None if a length is negative."""
    negative, misplaced = DefectCount(), DefectCount()
    tokens, end = 0, 0
    for first, lengths in column_blocks(file, header.lengths):
        negative.add(lengths < 0, lambda i, first=first, lengths=lengths: f"{lengths[i]} of sequence {first + i}")
        tokens += int(lengths.sum(dtype=np.int64))
        if dtype is None:
            continue
        offsets = read_column(file, header.offsets, first, first + len(lengths))
        ends = offsets + lengths.astype(np.int64) * dtype.itemsize
        expected = np.concatenate([np.array([end], np.int64), ends[:-1]])
        misplaced.add(
            offsets != expected,
            lambda i, first=first, offsets=offsets, expected=expected: (
                f"{offsets[i]} of sequence {first + i}, the one before ends at {expected[i]}"
            ),
        )
        end = int(ends[-1])
    negative.report(path, "negative length", result)
    misplaced.report(path, "wrong offset", result)
    return None if negative.count else tokens


def _check_documents(path: str, file: IO[bytes], header: Header, result: Verification) -> None:
    if not header.document_entries:
        result.find(path, "the document index is empty; it begins with 0 even without documents")
        return
    descending, outside = DefectCount(), DefectCount()
    before: int | None = None
    for first, entries in column_blocks(file, header.entries):
        if first == 0 and entries[0] != 0:
            result.find(path, f"the document index begins with {entries[0]}, not with 0")
        previous = np.concatenate([np.array([entries[0] if before is None else before], np.int64), entries[:-1]])
        descending.add(
            entries < previous,
            lambda i, first=first, entries=entries, previous=previous: (
                f"document {first + i} begins at sequence {entries[i]}, the one before at {previous[i]}"
            ),
        )
        outside.add(
            (entries < 0) | (entries > header.sequences),
            lambda i, first=first, entries=entries: f"{entries[i]} for document {first + i} of {header.sequences} sequences",
        )
        before = int(entries[-1])
    descending.report(path, "the document index descends", result)
    outside.report(path, "an entry of the document index is out of range", result)
    if before != header.sequences:
        result.find(path, f"the document index ends at sequence {before}, there are {header.sequences}")


def _check_bin_size(prefix: str, expected: int, result: Verification) -> None:
    size = storage.size_bytes(bin_path(prefix))
    if size < expected:
        result.find(bin_path(prefix), f"{size} bytes, its index says {expected}: it is truncated")
    elif size > expected:
        result.find(bin_path(prefix), f"{size} bytes, its index says {expected}: {size - expected} bytes are left over")
