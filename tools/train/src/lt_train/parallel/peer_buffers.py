"""Buffers for FSDP's collectives. Each rank of a group can read the buffers of its peers."""

from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from lt_train.parallel.symmetric_memory import allocate


class PeerBuffer(Protocol):
    """One-dimensional buffer, equally long on every rank of a group of `size` ranks. `rank` is the local rank in the group."""

    rank: int
    size: int

    def rank_buffer(self, rank: int) -> Tensor:
        """Return the buffer of `rank`."""
        ...

    def barrier(self) -> None:
        """Let later work on the local stream run after all earlier work on every rank's stream."""
        ...


class SymmetricBuffer:
    """A `PeerBuffer` for the GPUs of a node. Copy engines copy from the buffers of other ranks."""

    def __init__(self, group: ProcessGroup, count: int, dtype: torch.dtype):
        self.rank, self.size = group.rank(), group.size()
        self._memory, self._handle = allocate(max(1, count) * dtype.itemsize, group)
        self._parts: list[Tensor] = [self._handle.get_buffer(rank, (count,), dtype, 0) for rank in range(self.size)]

    def rank_buffer(self, rank: int) -> Tensor:
        return self._parts[rank]

    def barrier(self) -> None:
        self._handle.barrier(channel=0)
