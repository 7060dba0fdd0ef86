"""Buffers that the ranks of a group can read from each other, for FSDP's collectives."""

from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from lt_train.parallel.symmetric_memory import allocated


class PeerBuffer(Protocol):
    """A one-dimensional buffer of equal size on all ranks of a group.

    `rank` is this rank in the group, `size` the group's size.
    """

    rank: int
    size: int

    def of(self, rank: int) -> Tensor:
        """Return the buffer of `rank`."""
        ...

    def barrier(self) -> None:
        """Order work on the streams: later work on this stream runs after all earlier work on the streams of all ranks."""
        ...


class SymmetricBuffer:
    """A `PeerBuffer` for the GPUs of one node. Copy engines make the copies from the buffers of other ranks."""

    def __init__(self, group: ProcessGroup, count: int, dtype: torch.dtype):
        self.rank, self.size = group.rank(), group.size()
        self._memory, self._handle = allocated(max(1, count) * dtype.itemsize, group)
        self._parts: list[Tensor] = [self._handle.get_buffer(rank, (count,), dtype, 0) for rank in range(self.size)]

    def of(self, rank: int) -> Tensor:
        return self._parts[rank]

    def barrier(self) -> None:
        self._handle.barrier(channel=0)
