"""Distribute a rank's objects to shard files, and write the files.

megatron-core's writer copies every CPU tensor that is a view of a larger one, as all tensors of a distributed optimizer are,
before it forks. It has a process or a thread per file, whose number differs between versions. It serialises with torch, computes
checksums, and writes through the page cache. Here a tensor is not copied before the block for it is filled.
"""

import queue
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.strategies import filesystem_async
from torch.distributed.checkpoint.filesystem import DEFAULT_SUFFIX, _StorageInfo
from torch.distributed.checkpoint.planner import WriteItemType

from lt_shared.console import ToolError
from lt_train.checkpoint.shard_checksums import CheckedWriteResult
from lt_train.checkpoint.shards import archives, tensor_archive
from lt_train.checkpoint.shards.archives import Archive, WrittenObject
from lt_train.megatron.filesystem_async import write_by

# With two files, one file's block is filled while the other file's block is written.
FILES = 2
# One connection to a store is slower than a disk; several connections together are faster.
REMOTE_FILES = 8
# A shard file: path, name in the index, then objects and tensors, each with torch's write item.
Bucket = tuple[str, str, tuple[list[tuple[Any, Any]], list[tuple[Any, torch.Tensor]]]]


class WriteResults:
    """In place of a queue: the objects written into each file, by file number, or the error that stopped writing."""

    def __init__(self) -> None:
        self._results: Any = None

    def put(self, results: Any) -> None:
        self._results = results

    def get_nowait(self) -> Any:
        if self._results is None:
            raise queue.Empty
        return self._results


def prepare(writer: Any, plan: Any, planner: Any) -> None:
    """Distribute a rank's objects to files of about the same size, in place of megatron-core's `prepare_write_data`."""
    writer.write_buckets = []
    for items in filesystem_async._split_by_size_and_type(writer.thread_count, plan.items):
        objects = [(item, planner.resolve_data(item)) for item in items if item.type == WriteItemType.BYTE_IO]
        tensors = [(item, planner.resolve_data(item).detach()) for item in items if item.type != WriteItemType.BYTE_IO]
        if objects or tensors:
            name = f"{plan.storage_data.prefix}{len(writer.write_buckets)}{DEFAULT_SUFFIX}"
            writer.write_buckets.append((str(Path(writer.checkpoint_dir, name)), name, (objects, tensors)))
    writer.results_queue = WriteResults() if writer.write_buckets else None


def function_and_arguments(writer: Any) -> tuple[Any, Any, list[Any]]:
    """Return the write function, the staging function and the arguments, in place of `get_save_function_and_args`."""
    if not writer.write_buckets:
        return None, None, []
    return write, None, [torch.distributed.get_rank(), writer.write_buckets, writer.results_queue]


def install() -> None:
    """Let megatron-core return `write` in this process from now on."""
    write_by(prepare, function_and_arguments)


def write(rank: int, buckets: Sequence[Bucket], results: WriteResults) -> None:
    """Write all files of a rank, several at a time, and put the written objects or the error into `results`."""
    try:
        files = archives.write_files([(path, _archives(content)) for path, _, content in buckets])
    except ToolError:
        # `Writer` catches it and keeps its hint and its exit code.
        raise
    except Exception as error:
        results.put(error)
    else:
        results.put(write_results(buckets, files))


def write_results(buckets: Sequence[Bucket], files: Sequence[Sequence[WrittenObject]]) -> dict[int, list[CheckedWriteResult]]:
    """Convert positions and CRC-32 of the written objects to megatron-core's write results."""
    return {number: _file_results(bucket, objects) for number, (bucket, objects) in enumerate(zip(buckets, files, strict=True))}


def _archives(content: tuple[list[Any], list[Any]]) -> Iterator[Archive]:
    """Yield the objects of a file, then its tensors. Each tensor is copied to host memory in its turn."""
    objects, tensors = content
    for _, data in objects:
        yield archives.wrap_object(data.getbuffer())
    for _, tensor in tensors:
        yield tensor_archive.archive(tensor.cpu())


def _file_results(bucket: Bucket, written_objects: Sequence[WrittenObject]) -> list[CheckedWriteResult]:
    _, name, (objects, tensors) = bucket
    results, offset = [], 0
    for (item, _), (size_bytes, crc32) in zip([*objects, *tensors], written_objects, strict=True):
        results.append(CheckedWriteResult(item.index, size_bytes, _StorageInfo(name, offset, size_bytes), crc32))
        offset += size_bytes
    return results
