"""Memory that a rank shares with its writer process, and the places of tensors in it."""

import mmap
import os
from collections.abc import Sequence

import torch

from lt_train.checkpoint.shards import tensor_archive
from lt_train.checkpoint.shards.shard_files import Bucket
from lt_train.checkpoint.shards.writer_process import File, StagedTensor

# torch aligns tensors to 64 bytes.
ALIGNMENT = 64


def shared_memory(size_bytes: int) -> tuple[int, torch.Tensor]:
    """Create memory that is shared with the writer process. Return its descriptor and a tensor. Untouched pages take no memory.

    Unlike a file in /dev/shm, the memory may exceed the container's limit for such files.
    """
    descriptor = os.memfd_create("lt-train-checkpoint")
    os.ftruncate(descriptor, max(size_bytes, ALIGNMENT))
    return descriptor, torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def describe_file(bucket: Bucket, offsets: Sequence[int | None]) -> File:
    """Describe one file for the writer process. An offset is None if the tensor is copied in its turn."""
    path, _, (objects, tensors) = bucket
    pairs = zip(tensors, offsets, strict=True)
    staged = [StagedTensor(tensor_archive.frame(tensor), offset, tensor.nbytes) for (_, tensor), offset in pairs]
    return path, [*(data.getvalue() for _, data in objects), *staged]
