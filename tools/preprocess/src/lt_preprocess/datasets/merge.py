"""Merge datasets: the tokens are copied as whole files, the indexes block by block.

Only one block of an index is in memory at a time (`block_reader`), where other tools need 20 bytes a document and more. The
tokens never enter the process: `copy_file_range` lets the kernel copy them, or share them on filesystems that can (XFS, Btrfs),
several ranges at once, because a parallel filesystem is faster than one stream. The result is byte for byte what one run over all
the inputs writes, and what Megatron's merge_datasets.py writes.
"""

import dataclasses
import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, NamedTuple

from lt_preprocess.datasets import provenance, source_datasets
from lt_preprocess.datasets.block_reader import BlockReader, Shape
from lt_preprocess.datasets.masked_documents import MaskedWriter, check_mask
from lt_preprocess.datasets.provenance import Derivation
from lt_shared.console import IoFailure, Progress
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset
from lt_shared.data.document_origins import origins
from lt_shared.data.document_origins.origins import Joined, Origins
from lt_shared.files import checksums, storage

PIECE_BYTES = 64 << 20
STREAMS = 4
BUFFER_BYTES = 8 << 20

_KERNEL_CANNOT = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A merge that has been checked: every part exists, has its full size and fits the others."""

    parts: list[Dataset]
    shapes: list[Shape]
    result: Dataset
    options: dict[str, Any]
    files: list[dict[str, Any]] | None
    derivation: Derivation

    def to_record(self) -> dict[str, Any]:
        """The plan as `--dry-run` prints it."""
        return {
            "v": manifest.SIDECAR_VERSION,
            "kind": "plan",
            "command": "merge",
            "result": manifest.record_of(self.result),
            "parts": [source["prefix"] for source in self.derivation.sources],
            "up_to_date": provenance.finished(self.result.prefix, self.derivation) is not None,
        }


def plan(sources: Sequence[str], output_prefix: str) -> Plan:
    """Find and compare the parts. Raises as `source_datasets.parts_of_merge` and `check_alike`."""
    prefix = manifest.absolute(output_prefix)
    parts = source_datasets.parts_of_merge(sources, prefix)
    shapes: list[Shape] = []
    for part in parts:
        with BlockReader(part.prefix) as reader:
            shapes.append(reader.shape)
        if part.loss_mask:
            check_mask(part.prefix)
    result = dataclasses.replace(
        source_datasets.check_alike(parts, shapes),
        prefix=prefix,
        documents=sum(shape.documents for shape in shapes),
        tokens=sum(shape.tokens for shape in shapes),
        removed=_removed(parts),
    )
    options = provenance.shared_options(parts)
    options.pop("shard", None)
    return Plan(parts, shapes, result, options, provenance.shared_sources(parts), Derivation.of("merge", {}, parts))


def _removed(parts: Sequence[Dataset]) -> dict[str, int] | None:
    """Sum up the documents that rules removed, by kind."""
    counts = Counter[str]()
    for part in parts:
        counts.update(part.removed or {})
    return dict(sorted(counts.items())) or None


def build(plan: Plan) -> Dataset:
    """Copy everything and publish the merged dataset.

    Raises: BadData for a part whose index is malformed, CannotCreate and IoFailure when the output cannot be written. Nothing is
    visible then.
    """
    with MaskedWriter(plan.result, plan.shapes[0].dtype) as masked:
        tokens = sum(shape.tokens for shape in plan.shapes)
        size_bytes = tokens * sum(writer.dtype.itemsize for writer in masked.writers)
        with Progress("merging", size_bytes, "B") as progress:
            for writer in masked.writers:
                # Of a mask, the ending of its prefix.
                ending = writer.prefix.removeprefix(plan.result.prefix)
                _copy_all([f"{part.prefix}{ending}" for part in plan.parts], writer, progress.advance)
        masked.publish(plan.result, plan.derivation, plan.options, plan.files, _origins(plan))
    return plan.result


def _copy_all(prefixes: Sequence[str], writer: indexed_dataset.Writer, advance: Callable[[float], None]) -> None:
    """Append all documents of the datasets at `prefixes`."""
    sizes = []
    for prefix in prefixes:
        with BlockReader(prefix) as reader:
            sizes.append(reader.shape.size_bytes)
            for block in reader.blocks():
                writer.append_index(block.sequence_lengths, block.sequences_per_document)
    concatenate(list(zip(map(indexed_dataset.bin_path, prefixes), sizes, strict=True)), writer.bin_file, advance)
    for prefix, size in zip(prefixes, sizes, strict=True):
        writer.tokens_were_copied(_checksum_of_tokens(prefix, size), size)


def _origins(plan: Plan) -> Origins | None:
    """Join the origins of the parts; None if no part records where its documents come from."""
    of_parts = [origins.of_dataset(part.prefix) for part in plan.parts]
    return Joined(of_parts, [shape.documents for shape in plan.shapes]) if any(of_parts) else None


def _checksum_of_tokens(prefix: str, size_bytes: int) -> int:
    """The CRC-32 of a part's `.bin`: the recorded one, so that damage done since is found in the merged dataset, too."""
    recorded = manifest.recorded_checksums(prefix)
    if recorded is not None and recorded["bin"].size_bytes == size_bytes:
        return recorded["bin"].crc32
    with storage.open_read(indexed_dataset.bin_path(prefix)) as file:
        return checksums.crc32_of_file(file, size_bytes)


class _Piece(NamedTuple):
    path: str
    source_offset: int
    target_offset: int
    size: int


def _pieces(files: Sequence[tuple[str, int]]) -> Iterator[_Piece]:
    end = 0
    for path, size in files:
        for start in range(0, size, PIECE_BYTES):
            yield _Piece(path, start, end + start, min(PIECE_BYTES, size - start))
        end += size


def concatenate(files: Sequence[tuple[str, int]], target: IO[bytes], advance: Callable[[float], None]) -> None:
    """Write the first `size` bytes of every (path, size) to `target`, an empty file.

    Raises IoFailure if a file became shorter.
    """
    if any(storage.is_remote(path) for path, _ in files) or not _is_plain_file(target):
        for path, size in files:
            _stream(path, size, target, advance)
        return
    descriptor = target.fileno()
    with ThreadPoolExecutor(STREAMS, thread_name_prefix="merge") as pool:
        # After an exception the map begins no other piece.
        for copied in pool.map(lambda piece: _copy(piece, descriptor), _pieces(files)):
            advance(copied)


def _is_plain_file(file: IO[bytes]) -> bool:
    try:
        file.fileno()
    except (OSError, AttributeError):
        return False
    return True


def _stream(path: str, size: int, target: IO[bytes], advance: Callable[[float], None]) -> None:
    with storage.open_read(path) as file:
        remaining = size
        while remaining:
            data = file.read(min(remaining, BUFFER_BYTES))
            if not data:
                raise _shrunk(path)
            target.write(data)
            remaining -= len(data)
            advance(len(data))


def _copy(piece: _Piece, target: int) -> int:
    """Copy one range in the kernel, or through a buffer where the kernel cannot; returns its size."""
    with storage.open_read(piece.path) as file:
        source = file.fileno()
        copied_bytes = 0
        while copied_bytes < piece.size:
            try:
                copied = os.copy_file_range(
                    source,
                    target,
                    piece.size - copied_bytes,
                    piece.source_offset + copied_bytes,
                    piece.target_offset + copied_bytes,
                )
            except OSError as error:
                if error.errno not in _KERNEL_CANNOT:
                    raise
                copied = 0
            if copied == 0:
                # Some network filesystems answer 0 where they mean that they cannot.
                copied = _copy_through_buffer(piece, copied_bytes, source, target)
            copied_bytes += copied
    return piece.size


def _copy_through_buffer(piece: _Piece, copied_bytes: int, source: int, target: int) -> int:
    buffer = memoryview(bytearray(min(BUFFER_BYTES, piece.size - copied_bytes)))
    read = os.preadv(source, [buffer], piece.source_offset + copied_bytes)
    if read == 0:
        raise _shrunk(piece.path)
    written = 0
    while written < read:
        written += os.pwrite(target, buffer[written:read], piece.target_offset + copied_bytes + written)
    return read


def _shrunk(path: str) -> IoFailure:
    return IoFailure(f"{path}: became shorter while it was copied")
