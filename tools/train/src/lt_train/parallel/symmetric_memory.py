"""Memory that the GPUs of a node map into each other's address space, by PyTorch's symmetric memory.

Copy engines copy between GPUs, on a separate stream. NVLink's multicast is not needed. Three buffers hold the hidden states of
a micro batch: 0.8 GB for Llama 3 8B's width and 32,768 tokens.
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


def allocate(size_bytes: int, group: ProcessGroup) -> tuple[Tensor, Any]:
    """Allocate symmetric memory on every rank of `group`; every rank of `group` calls this together.

    Returns the local tensor, which keeps the memory alive, and torch's handle of every rank's memory.
    """
    from torch._C._distributed_c10d import _SymmetricMemory
    from torch.distributed import _symmetric_memory as symmetric_memory

    # Not by `symmetric_memory.empty`, because its tensors may begin at any offset in the memory of a handle.
    place = torch.device(CUDA, torch.cuda.current_device())
    memory = _SymmetricMemory.empty_strided_p2p((size_bytes,), (1,), torch.uint8, place)
    device.count_outside_allocator(memory, memory.numel())
    return memory, symmetric_memory.rendezvous(memory, group)


class SymmetricMemory:
    """A `PeerMemory` for the ranks of `group`. Slots have `size_bytes` and grow if a larger buffer is requested."""

    def __init__(self, group: ProcessGroup, size_bytes: int):
        self.group = group
        self.rank, self.size = group.rank(), group.size()
        self._size_bytes = size_bytes
        self._slots: list[tuple[Tensor, Any]] = [allocate(size_bytes, group) for _ in range(SLOTS)]
        self._copies: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def buffer(self, slot: int, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        size_bytes = rows * width * dtype.itemsize
        if size_bytes > len(self._slots[slot][0]):
            # No peer reads the slot any more, but kernels that this rank has queued may.
            torch.cuda.synchronize()
            self._slots[slot] = allocate(size_bytes, self.group)
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
    """Raise RuntimeError if the ranks of `group` cannot read each other's memory. All ranks of the world call it."""
    places = agreement.gather_objects([socket.gethostname(), torch.cuda.current_device()])
    peers = [places[rank] for rank in torch.distributed.get_process_group_ranks(group)]
    local_host, local_gpu = places[torch.distributed.get_rank()]
    problem = None
    if {host for host, _ in peers} != {local_host}:
        problem = "ranks that share weights are on several nodes"
    elif blind := [peer for _, peer in peers if peer != local_gpu and not torch.cuda.can_device_access_peer(local_gpu, peer)]:
        problem = f"GPU {local_gpu} cannot read the memory of GPU {blind[0]}"
    problems = agreement.gather_objects(problem)
    # All ranks raise, or none, because a rank that went on would wait for the ranks that raised.
    for first in filter(None, problems):
        raise RuntimeError(first)
    memory = SymmetricMemory(group, math.prod(_TRIED_SHAPE) * torch.float32.itemsize)
    written = memory.buffer(0, *_TRIED_SHAPE, torch.float32)
    written.fill_(memory.rank)
    memory.barrier()
    received = torch.empty_like(written)
    peer = (memory.rank + 1) % memory.size
    memory.fetch(received, 0, peer, 0)()
    memory.barrier()
    if not bool(received.eq(peer).all()):
        raise RuntimeError(f"rank {memory.rank} reads something else than rank {peer} has written")


_TRIED_SHAPE = (256, 1024)
