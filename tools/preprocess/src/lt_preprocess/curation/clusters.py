"""The second pass of deduplication: from files of signatures to the list of duplicates, in bounded memory.

Documents are numbered in the order of the files and of their inputs. Documents with equal hashes in a column belong to one
cluster, and clusters that share a document are one. The first document of a cluster stays, whatever the workers, shards and
interruptions are. A column is sorted in partitions of PARTITION_DOCUMENTS, on disk if there are several; the clusters are a
sparse file: only pages with duplicates take memory.
"""

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.compiler import jit
from lt_preprocess.compiler.jit import inner, kernel
from lt_preprocess.curation import signature_files
from lt_preprocess.curation.minhash import NO_BAND
from lt_preprocess.curation.signature_files import Column, SignatureFile
from lt_shared.console import Progress

PARTITION_DOCUMENTS = 1 << 21
MOST_PARTITIONS = 512
_HALF = np.uint64(32)

Numbers = npt.NDArray[np.int64]


class Duplicate(NamedTuple):
    """Documents that are removed, in order, and the document that stays in their cluster; `is_exact` if the texts are equal."""

    documents: Numbers
    kept: Numbers
    is_exact: npt.NDArray[np.bool_]


def duplicates(files: Sequence[SignatureFile], directory: str) -> Iterator[Duplicate]:
    """Find duplicates in all files, and yield them in blocks; `directory` is for temporary files."""
    total = sum(file.documents for file in files)
    has_bands = all(file.record["method"] == "minhash" for file in files)
    columns: list[tuple[int, ...]] = [(signature_files.EXACT_HIGH, signature_files.EXACT_LOW)]
    if has_bands:
        columns += [(column,) for column in range(signature_files.FIRST_BAND, signature_files.columns("minhash"))]
    with tempfile.TemporaryFile(dir=directory) as file, Progress("joining", len(columns), "columns") as progress:
        parents, is_exact = _sparse(file, total)
        jit.apart(lambda: _union(np.zeros(1, np.int64), np.zeros(1, np.int64), parents[:0]))
        for keys in columns:
            for first, others in _equal_documents(files, keys, total, directory):
                _union(first, others, parents)
                if keys[0] == signature_files.EXACT_HIGH:
                    is_exact[others] = 1
            progress.advance(1)
        for begin in range(0, total, signature_files.DOCUMENTS_AT_ONCE):
            block = parents[begin : begin + signature_files.DOCUMENTS_AT_ONCE]
            documents = begin + np.flatnonzero(block)
            if len(documents):
                kept = np.empty(len(documents), np.int64)
                _roots(documents, parents, kept)
                yield Duplicate(documents, kept, is_exact[documents] != 0)


def _sparse(file: IO[bytes], total: int) -> tuple[Numbers, npt.NDArray[np.uint8]]:
    """Return arrays of zeros, int64 [total] and uint8 [total], in a file that takes disk where they are written."""
    file.truncate(max(9 * total, 1))
    if total == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.uint8)
    parents: Any = np.memmap(file, np.int64, "r+", 0, (total,))
    flags: Any = np.memmap(file, np.uint8, "r+", 8 * total, (total,))
    return parents, flags


def _equal_documents(
    files: Sequence[SignatureFile], keys: tuple[int, ...], total: int, directory: str
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield pairs of documents with equal keys: the first one of its group, and another one."""
    blocks = _records(files, keys)
    partitions = min(-(-total // PARTITION_DOCUMENTS), MOST_PARTITIONS)
    if partitions <= 1:
        yield from _pairs(np.concatenate([np.zeros((0, len(keys) + 1), np.uint64), *blocks]))
        return
    spills = [tempfile.TemporaryFile(dir=directory, buffering=1 << 16) for _ in range(partitions)]
    try:
        for records in blocks:
            # The upper half of the hash decides, so that partitions are equally large.
            partition = (records[:, 0] >> _HALF) * np.uint64(partitions) >> _HALF
            order = np.argsort(partition, kind="stable")
            ends = np.cumsum(np.bincount(partition.astype(np.int64), minlength=partitions))
            for spill, (begin, end) in zip(spills, itertools.pairwise([0, *ends.tolist()]), strict=True):
                spill.write(records[order[begin:end]].tobytes())
        for spill in spills:
            spill.seek(0)
            yield from _pairs(np.frombuffer(spill.read(), np.uint64).reshape(-1, len(keys) + 1))
            spill.close()
    finally:
        for spill in spills:
            spill.close()


def _records(files: Sequence[SignatureFile], keys: tuple[int, ...]) -> Iterator[Column]:
    """Yield documents' keys, and the document's number, uint64 [documents, keys + 1]."""
    begin = 0
    for file in files:
        for columns in zip(*(file.blocks(key) for key in keys), strict=True):
            numbers = np.arange(begin, begin + len(columns[0]), dtype=np.uint64)
            begin += len(numbers)
            records = np.stack([*columns, numbers], axis=1)
            yield records if len(keys) > 1 else records[columns[0] != NO_BAND]


def _pairs(records: Column) -> Iterator[tuple[Numbers, Numbers]]:
    # The last key of lexsort is the first criterion. Documents ascend already, and the sort is stable.
    order = np.lexsort(records[:, :-1].T[::-1])
    ordered = records[order]
    is_equal = (ordered[1:, :-1] == ordered[:-1, :-1]).all(axis=1)
    if is_equal.any():
        others = np.flatnonzero(is_equal) + 1
        begins = np.flatnonzero(np.append(True, ~is_equal))
        first = begins[np.searchsorted(begins, others, side="right") - 1]
        yield ordered[first, -1].astype(np.int64), ordered[others, -1].astype(np.int64)


@inner
def _root(document: int, parents: Numbers) -> int:
    """The first document of the cluster. A parent is stored plus 1, so that 0, the content of a sparse file, is none."""
    while parents[document]:
        parent = parents[document] - 1
        if parents[parent]:
            # Halve the path.
            parents[document] = parents[parent]
        document = parent
    return document


@kernel
def _union(first: Numbers, others: Numbers, parents: Numbers) -> None:
    for pair in range(len(first)):
        one, other = _root(first[pair], parents), _root(others[pair], parents)
        if one < other:
            parents[other] = one + 1
        elif other < one:
            parents[one] = other + 1


@kernel
def _roots(documents: Numbers, parents: Numbers, roots: Numbers) -> None:
    for index in range(len(documents)):
        roots[index] = _root(documents[index], parents)
