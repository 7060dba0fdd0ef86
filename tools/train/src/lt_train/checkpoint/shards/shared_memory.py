"""Memory that a rank shares with its writer process, and the places of tensors in it."""

import mmap
import os
from collections.abc import Sequence

import torch

from lt_train.checkpoint.shards import tensor_archive
from lt_train.checkpoint.shards.shard_files import Bucket
from lt_train.checkpoint.shards.writer_process import File, StagedTensor

# As torch aligns its own tensors.
ALIGNMENT = 64


def shared_memory(size_bytes: int) -> tuple[int, torch.Tensor]:
    """A descriptor for the writer process, and the memory; pages that are not touched take none.

    Unlike a file in /dev/shm, it may be larger than a container allows those to be.
    """
    descriptor = os.memfd_create("lt-train-checkpoint")
    os.ftruncate(descriptor, max(size_bytes, ALIGNMENT))
    return descriptor, torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def file_of(bucket: Bucket, offsets: Sequence[int | None]) -> File:
    """What the writer process writes into a file; an offset is None where the tensor is copied when its turn comes."""
    path, _, (objects, tensors) = bucket
    pairs = zip(tensors, offsets, strict=True)
    staged = [StagedTensor(tensor_archive.frame(tensor), offset, tensor.nbytes) for (_, tensor), offset in pairs]
    return path, [*(data.getvalue() for _, data in objects), *staged]
