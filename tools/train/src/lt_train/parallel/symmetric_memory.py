"""Memory of the GPUs of a node that they map into each other's address space, by PyTorch's symmetric memory.

Copies between GPUs are made by copy engines, on a stream of their own. NVLink's multicast is not needed. The price are three
buffers of a micro batch's hidden states: 0.8 GB for Llama 3 8B's width and 32,768 tokens.
"""

import math
import socket
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from lt_train.ops.peer_exchange import SLOTS
from lt_train.process import agreement, device
from lt_train.process.device import CUDA


def allocated(size_bytes: int, group: ProcessGroup) -> tuple[Tensor, Any]:
    """A tensor that keeps this rank's part, and torch's handle of the parts of all ranks of `group`, which all call this."""
    from torch._C._distributed_c10d import _SymmetricMemory
    from torch.distributed import _symmetric_memory as symmetric_memory

    # Not by torch's `empty`, whose tensors may begin anywhere in the memory that a handle stands for.
    place = torch.device(CUDA, torch.cuda.current_device())
    memory = _SymmetricMemory.empty_strided_p2p((size_bytes,), (1,), torch.uint8, place)
    device.count_outside_allocator(memory, memory.numel())
    return memory, symmetric_memory.rendezvous(memory, group)


class SymmetricMemory:
    """An `ops.peer_exchange.PeerMemory` of the ranks of `group`, with slots of `size_bytes`, or more if that is asked for."""

    def __init__(self, group: ProcessGroup, size_bytes: int):
        self.group = group
        self.rank, self.size = group.rank(), group.size()
        self._size_bytes = size_bytes
        self._slots: list[tuple[Tensor, Any]] = [allocated(size_bytes, group) for _ in range(SLOTS)]
        self._copies: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def buffer(self, slot: int, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        size_bytes = rows * width * dtype.itemsize
        if size_bytes > len(self._slots[slot][0]):
            # No peer reads it any more, or this rank would not have got it: but what it has queued itself may.
            torch.cuda.synchronize()
            self._slots[slot] = allocated(size_bytes, self.group)
        return self._part(slot, self.rank, (rows, width), dtype, 0)

    def _part(self, slot: int, rank: int, shape: tuple[int, ...], dtype: torch.dtype, offset: int) -> Tensor:
        part: Tensor = self._slots[slot][1].get_buffer(rank, shape, dtype, offset)
        return part

    def barrier(self) -> None:
        self._slots[0][1].barrier(channel=0)

    def fetch(self, into: Tensor, slot: int, peer: int, offset: int) -> Callable[[], object]:
        source = self._part(slot, peer, tuple(into.shape), into.dtype, offset)
        self._copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copies):
            into.copy_(source)
        arrived: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(self._copies)
        return arrived.wait


def check(group: ProcessGroup) -> None:
    """Raise RuntimeError where the ranks of `group` cannot read each other's memory. All ranks of the world call it."""
    places = agreement.gather_objects([socket.gethostname(), torch.cuda.current_device()])
    peers = [places[rank] for rank in torch.distributed.get_process_group_ranks(group)]
    here, mine = places[torch.distributed.get_rank()]
    problem = None
    if {host for host, _ in peers} != {here}:
        problem = "ranks that share weights are on several nodes"
    elif blind := [peer for _, peer in peers if peer != mine and not torch.cuda.can_device_access_peer(mine, peer)]:
        problem = f"GPU {mine} cannot read the memory of GPU {blind[0]}"
    problems = agreement.gather_objects(problem)
    # All ranks stop here or none: those that went on would wait for the others.
    for first in filter(None, problems):
        raise RuntimeError(first)
    memory = SymmetricMemory(group, math.prod(_TRIED_SHAPE) * torch.float32.itemsize)
    own = memory.buffer(0, *_TRIED_SHAPE, torch.float32)
    own.fill_(memory.rank)
    memory.barrier()
    found = torch.empty_like(own)
    peer = (memory.rank + 1) % memory.size
    memory.fetch(found, 0, peer, 0)()
    memory.barrier()
    if not bool(found.eq(peer).all()):
        raise RuntimeError(f"rank {memory.rank} reads something else than rank {peer} has written")


_TRIED_SHAPE = (256, 1024)
