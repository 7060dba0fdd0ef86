"""The files of a rank's shards: which object is in which, and how they are written.

megatron-core's own writer copies every tensor on the CPU that is a part of a larger one, as all of a distributed optimizer's are,
before it forks; has a process or a thread for each file, whose number differs between its versions; and writes through the page
cache what torch has serialised and summed up. Here a tensor stays where it is until the block that is written is filled with it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.strategies import filesystem_async
from torch.distributed.checkpoint.filesystem import DEFAULT_SUFFIX, _StorageInfo
from torch.distributed.checkpoint.planner import WriteItemType

from lt_shared.console import ToolError
from lt_train.checkpoint.shard_checksums import CheckedWriteResult
from lt_train.checkpoint.shards import direct_file, tensor_archive
from lt_train.megatron.filesystem_async import write_by

# While the block of one is filled, that of another is written.
FILES = 2
# A connection to a store is slower than a disk, and several are faster than one.
REMOTE_FILES = 8
# Path, name in the index, and the objects and the tensors in it, each with what torch wants to know of it.
Bucket = tuple[str, str, tuple[list[tuple[Any, Any]], list[tuple[Any, torch.Tensor]]]]


def prepare(writer: Any, plan: Any, planner: Any) -> None:
    """megatron-core's `prepare_write_data`: distributes a rank's objects to files of about the same size."""
    writer.write_buckets = []
    for items in filesystem_async._split_by_size_and_type(writer.thread_count, plan.items):
        objects = [(item, planner.resolve_data(item)) for item in items if item.type == WriteItemType.BYTE_IO]
        tensors = [(item, planner.resolve_data(item).detach()) for item in items if item.type != WriteItemType.BYTE_IO]
        if objects or tensors:
            name = f"{plan.storage_data.prefix}{len(writer.write_buckets)}{DEFAULT_SUFFIX}"
            writer.write_buckets.append((str(Path(writer.checkpoint_dir, name)), name, (objects, tensors)))
    writer.results_queue = filesystem_async._results_queue if writer.write_buckets else None


def function_and_arguments(writer: Any) -> tuple[Any, Any, list[Any]]:
    """megatron-core's `get_save_function_and_args`: what writes, what it would bring to host memory with, what is written."""
    if not writer.write_buckets:
        return None, None, []
    return write, None, [torch.distributed.get_rank(), writer.write_buckets, writer.results_queue]


def install() -> None:
    """Have megatron-core hand out `write` from now on, in this process."""
    write_by(prepare, function_and_arguments)


def write(rank: int, buckets: Sequence[Bucket], results: Any) -> None:
    """Write all files of a rank, several at a time, and put what is in them, or the error, into `results`."""
    with ThreadPoolExecutor(len(buckets)) as pool:
        files = [pool.submit(write_file, *bucket) for bucket in buckets]
    error = next((error for file in files if (error := file.exception())), None)
    if isinstance(error, ToolError):
        raise error
    results.put(error or {number: file.result() for number, file in enumerate(files)})


def write_file(path: str, name: str, content: tuple[list[Any], list[Any]]) -> list[CheckedWriteResult]:
    """Write a file; returns where each object is, and its CRC-32. It is durable then."""
    objects, tensors = content
    found, offset = [], 0
    with direct_file.written(path) as file:
        for item, data in [*objects, *tensors]:
            is_tensor = isinstance(data, torch.Tensor)
            archive = tensor_archive.archive(data.cpu()) if is_tensor else tensor_archive.plain(data.getbuffer())
            for part, _ in archive.parts:
                file.write(part)
            info = _StorageInfo(name, offset, archive.size_bytes)
            found.append(CheckedWriteResult(item.index, archive.size_bytes, info, archive.crc32))
            offset += archive.size_bytes
    return found
