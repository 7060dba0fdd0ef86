"""Ranks of sequence parallelism on threads of one process, which read each other's memory as GPUs of a node do."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from lt_train.ops.peer_exchange import PeerExchange

LARGEST_BYTES = 1 << 20


class Memory:
    """A `PeerMemory` of threads. What is fetched `late` is copied when it is waited for, on the last rank after a while."""

    group = None

    def __init__(self, rank: int, size: int, slots: dict[tuple[int, int], Tensor], barrier: threading.Barrier, late: bool):
        self.rank, self.size, self.slots, self._barrier, self._late = rank, size, slots, barrier, late
        self.barriers = 0

    def buffer(self, slot: int, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        held = self.slots.setdefault((self.rank, slot), torch.empty(LARGEST_BYTES, dtype=torch.uint8))
        return held.view(dtype)[: rows * width].view(rows, width)

    def barrier(self) -> None:
        self.barriers += 1
        self._barrier.wait(60)

    def fetch(self, into: Tensor, slot: int, peer: int, offset: int) -> Callable[[], object]:
        def copy() -> None:
            time.sleep(0.02 if self._late and self.rank == self.size - 1 else 0)
            into.copy_(self.slots[peer, slot].view(into.dtype)[offset : offset + into.numel()].view(into.shape))

        if self._late:
            return copy
        copy()
        return lambda: None


def on_ranks(size: int, late: bool, work: Callable[[PeerExchange, Memory], Any]) -> list[Any]:
    """What `work` returns on each rank."""
    slots: dict[tuple[int, int], Tensor] = {}
    barrier = threading.Barrier(size)
    memories = [Memory(rank, size, slots, barrier, late) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda memory: work(PeerExchange(memory), memory), memories))
