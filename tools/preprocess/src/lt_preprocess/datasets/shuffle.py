"""Shuffle the documents of a dataset that does not fit in memory.

Every document gets a random 64-bit key, and the result is the documents sorted by it. The keys come from NumPy's PCG64 with the
given seed, one a document in order, so the result depends on nothing else: neither on the machine nor on its memory. Sorting
takes two passes: documents go to bucket files by the first bits of their keys, and each bucket, small enough for memory, is
sorted and appended. Both passes read and write in sequence; a bucket that is too large goes through another such pass. The
buckets lie beside the output and need as much space.
"""

import contextlib
import dataclasses
import os
import shutil
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.datasets import provenance, source_datasets
from lt_preprocess.datasets.block_reader import Documents
from lt_preprocess.datasets.masked_documents import MaskedReader, MaskedWriter
from lt_preprocess.datasets.provenance import Derivation, OneSourcePlan
from lt_shared.console import CannotCreate, Progress
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data.document_origins import origins
from lt_shared.data.document_origins.origins import Shuffled
from lt_shared.files import leftovers, ownership, storage
from lt_shared.files.local_files import creating

BUCKET_BYTES = 64 << 20
TOKENS_AT_ONCE = 16 << 20
DOCUMENTS_AT_ONCE = 1 << 16
MOST_BUCKET_BITS = 9
KEY_BITS = 64

_RECORD = struct.Struct("<QQQ")


@dataclasses.dataclass(frozen=True)
class Plan(OneSourcePlan):
    """A shuffle that has been checked."""

    seed: int


def plan(source: str, output_prefix: str, seed: int) -> Plan:
    """Raises as `source_datasets.single`, BadConfig for a remote output: the buckets need a local or mounted filesystem."""
    dataset, shape = source_datasets.single(source)
    prefix = manifest.absolute(output_prefix)
    storage.require_local(prefix, "shuffling")
    source_datasets.check_not_the_source(dataset.prefix, prefix)
    result = dataclasses.replace(dataset, prefix=prefix, weight=1.0)
    return Plan(
        dataset, shape, result, provenance.shared_options([dataset]), Derivation.of("shuffle", {"seed": seed}, [dataset]), seed
    )


def build(plan: Plan) -> Dataset:
    """Shuffle and publish.

    Raises CannotCreate and IoFailure when the output cannot be written, BadData for a damaged source; nothing is visible then.
    """
    with MaskedWriter(plan.result, plan.shape.dtype) as writer:
        with (
            buckets_directory(plan.result.prefix) as directory,
            MaskedReader(plan.source) as reader,
            Progress("shuffling", 2 * reader.size_bytes, "B") as progress,
        ):
            with_keys = _with_keys(reader, plan.seed)
            size_bytes = reader.size_bytes + 16 * plan.shape.documents + 4 * plan.shape.sequences
            for some in sorted_by_key(with_keys, reader.dtype, size_bytes, directory, progress.advance):
                writer.append(some.tokens, some.sequence_lengths, some.sequences_per_document)
                progress.advance(some.tokens.nbytes)
        source = origins.of_dataset(plan.source.prefix)
        documents = source and Shuffled(source, plan.seed)
        writer.publish(plan.result, plan.derivation, plan.options, documents=documents)
    return plan.result


@contextlib.contextmanager
def buckets_directory(prefix: str) -> Iterator[Path]:
    """Create an empty private directory beside the output; delete it afterwards. A killed process's directory is deleted first.

    Raises CannotCreate if another user owns the directory.
    """
    directory = Path(prefix).with_name(f".{Path(prefix).name}.buckets")
    with creating(prefix):
        if os.path.lexists(directory):
            status = os.lstat(directory)
            other = ownership.belongs_to_other(status, directory.parent)
            if other is not None or not stat.S_ISDIR(status.st_mode):
                raise CannotCreate(
                    f"{prefix}: {directory} {other or 'is not a directory'}", "remove it, or choose another output"
                )
            leftovers.remove(directory)
        directory.mkdir(mode=0o700)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Keyed(NamedTuple):
    """Documents with a key each, uint64 [documents]."""

    keys: npt.NDArray[np.uint64]
    documents: Documents


def _with_keys(reader: MaskedReader, seed: int) -> Iterator[Keyed]:
    generator = np.random.PCG64(seed)
    for documents in reader.whole(TOKENS_AT_ONCE):
        keys = generator.random_raw(len(documents.sequences_per_document))
        yield Keyed(np.asarray(keys, np.uint64), documents)


def sorted_by_key(
    documents: Iterable[Keyed],
    dtype: np.dtype[Any],
    size_bytes: int,
    directory: Path,
    advance: Callable[[float], None],
    known_bits: int = 0,
) -> Iterator[Documents]:
    """Sort through files in `directory`; documents with equal keys keep their order. Keys share their first `known_bits`."""
    bits = min(max(size_bytes // BUCKET_BYTES, 1).bit_length(), MOST_BUCKET_BITS, KEY_BITS - known_bits)
    paths = [directory / f"{known_bits}-{number}" for number in range(1 << bits)]
    counts = _distribute(documents, paths, KEY_BITS - known_bits - bits, advance if known_bits == 0 else lambda amount: None)
    for path, count in zip(paths, counts.tolist(), strict=True):
        bucket_bytes = path.stat().st_size
        with path.open("rb") as file:
            stored = _read(file, dtype)
            if bucket_bytes > 2 * BUCKET_BYTES and count > 1 and known_bits + bits < KEY_BITS:
                yield from sorted_by_key(stored, dtype, bucket_bytes, directory, advance, known_bits + bits)
            elif count:
                yield from _sorted_in_memory(stored)
        path.unlink()


def _distribute(
    documents: Iterable[Keyed], paths: list[Path], shift: int, advance: Callable[[float], None]
) -> npt.NDArray[np.int64]:
    """Write every document to the file whose number is its key, shifted right; return the files' document counts."""
    counts = np.zeros(len(paths), np.int64)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for some in documents:
            buckets = ((some.keys >> np.uint64(shift)) & np.uint64(len(paths) - 1)).astype(np.int64)
            of_each = np.bincount(buckets, minlength=len(paths))
            order = np.argsort(buckets, kind="stable")
            for number, numbers in enumerate(np.split(order, np.cumsum(of_each)[:-1])):
                if len(numbers):
                    _write(files[number], Keyed(some.keys[numbers], some.documents.taken(numbers)))
            counts += of_each
            advance(some.documents.tokens.nbytes)
    return counts


def _sorted_in_memory(stored: Iterable[Keyed]) -> Iterator[Documents]:
    pieces = list(stored)
    keys = np.concatenate([piece.keys for piece in pieces])
    documents = Documents.joined([piece.documents for piece in pieces])
    del pieces
    order = np.argsort(keys, kind="stable")
    for first in range(0, len(order), DOCUMENTS_AT_ONCE):
        yield documents.taken(order[first : first + DOCUMENTS_AT_ONCE])


def _write(file: IO[bytes], some: Keyed) -> None:
    documents = some.documents
    file.write(_RECORD.pack(len(some.keys), len(documents.sequence_lengths), len(documents.tokens)))
    for column in (some.keys, documents.sequences_per_document, documents.sequence_lengths, documents.tokens):
        file.write(np.ascontiguousarray(column).data)


def _read(file: IO[bytes], dtype: np.dtype[Any]) -> Iterator[Keyed]:
    while header := file.read(_RECORD.size):
        documents, sequences, tokens = _RECORD.unpack(header)
        keys = np.frombuffer(file.read(8 * documents), np.uint64)
        counts = np.frombuffer(file.read(8 * documents), np.int64)
        lengths = np.frombuffer(file.read(4 * sequences), np.int32)
        yield Keyed(keys, Documents(counts, lengths, np.frombuffer(file.read(dtype.itemsize * tokens), dtype)))
