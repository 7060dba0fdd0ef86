"""Memory of a rank that its peers can read: what FSDP's collectives need of symmetric memory."""

from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from lt_train.parallel.symmetric_memory import allocated


class PeerBuffer(Protocol):
    """One-dimensional and of equal size on the ranks of a group; `rank` and `size` are those within it."""

    rank: int
    size: int

    def of(self, rank: int) -> Tensor:
        """The whole part of `rank`."""
        ...

    def barrier(self) -> None:
        """What follows on this stream, follows what all ranks did before on theirs."""
        ...


class SymmetricBuffer:
    """A `PeerBuffer` of GPUs of one node; copies out of another one's part are made by copy engines."""

    def __init__(self, group: ProcessGroup, count: int, dtype: torch.dtype):
        self.rank, self.size = group.rank(), group.size()
        self._memory, self._handle = allocated(max(1, count) * dtype.itemsize, group)
        self._parts: list[Tensor] = [self._handle.get_buffer(rank, (count,), dtype, 0) for rank in range(self.size)]

    def of(self, rank: int) -> Tensor:
        return self._parts[rank]

    def barrier(self) -> None:
        self._handle.barrier(channel=0)
