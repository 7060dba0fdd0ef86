"""Memory of a rank that its peers can read: what FSDP's collectives need of symmetric memory."""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from lt_train.runtime.device import CUDA


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
        from torch._C._distributed_c10d import _SymmetricMemory
        from torch.distributed import _symmetric_memory as symmetric_memory

        self.rank, self.size = group.rank(), group.size()
        place = torch.device(CUDA, torch.cuda.current_device())
        self._memory: Tensor = _SymmetricMemory.empty_strided_p2p((max(1, count) * dtype.itemsize,), (1,), torch.uint8, place)
        self._handle: Any = symmetric_memory.rendezvous(self._memory, group)
        self._parts: list[Tensor] = [self._handle.get_buffer(rank, (count,), dtype, 0) for rank in range(self.size)]

    def of(self, rank: int) -> Tensor:
        return self._parts[rank]

    def barrier(self) -> None:
        self._handle.barrier(channel=0)
