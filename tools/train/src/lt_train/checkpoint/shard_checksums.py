"""Collect the CRC-32 of every object in a checkpoint's shards on rank 0, and write `checksums.json`.

Every object has a separate checksum, because a rank reads only some objects of some files when it loads. The process that writes
an object computes the checksum from the tensor in memory, at memory speed. DCP gathers the checksums on rank 0 with the write
results. Rank 0 writes the small files beside the shards, and reads them back for their checksums.
"""

import dataclasses
from pathlib import Path
from typing import Any

from megatron.core.dist_checkpointing.strategies import filesystem_async
from torch.distributed.checkpoint.storage import WriteResult

from lt_shared.files import checksums, storage
from lt_shared.files.checksums import FileChecksums
from lt_train.megatron.filesystem_async import finish_by

Ranges = dict[str, list[tuple[int, int]]]
_collected: Ranges = {}
_finish = filesystem_async.FileSystemWriterAsync.finish


@dataclasses.dataclass(frozen=True)
class CheckedWriteResult(WriteResult):
    """A write result with the CRC-32 of the written bytes."""

    crc32: int = 0


def finish(writer: Any, metadata: Any, results: list[list[CheckedWriteResult]]) -> None:
    """Store the checksums in every rank's results on rank 0. Replaces megatron-core's `finish`."""
    all_results = [result for rank_results in results for result in rank_results]
    _collected.clear()
    for result in sorted(all_results, key=lambda result: (result.storage_data.relative_path, result.storage_data.offset)):
        info = result.storage_data
        _collected.setdefault(str(info.relative_path), []).append((info.length, result.crc32))
    _finish(writer, metadata, results)


def install() -> None:
    """Let megatron-core's writer collect checksums in this process from now on."""
    finish_by(finish)


def sizes() -> dict[str, int]:
    """Return the sizes in bytes of the last written checkpoint's shards, by name, on rank 0."""
    return {name: sum(size for size, _ in ranges) for name, ranges in _collected.items()}


def write(directory: Path) -> None:
    """Add `checksums.json` to the last written checkpoint, when its other files are complete."""
    beside = {
        str(path.relative_to(directory)): [(path.stat().st_size, checksums.crc32_of_path(path))]
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in _collected and path.name != FileChecksums.NAME
    }
    ranges = {name: tuple(file_checksums) for name, file_checksums in (_collected | beside).items()}
    storage.write_bytes(directory / FileChecksums.NAME, FileChecksums(ranges).to_bytes())
