"""Sequence parallelism's exchange of rows by copy engines, while GEMMs run: each rank reads the memory of the others.

NCCL's collectives run on multiprocessors that the GEMMs then lack, and those of the forward pass run while nothing else does.
Here a rank puts its rows into memory that its peers can read (symmetric memory), and copy engines fetch the peers' rows part by
part. The GEMM begins with the rank's own rows, and goes on with a peer's when they are there. A sum begins with what the peers
need: while they fetch it, the rank computes its own share. Sums are made in float32, and rounded once.

By the bytes a rank of two fetches 134 MB for Llama 3 8B's width and 32,768 tokens, 0.4 ms at 350 GB/s, in the shadow of a GEMM of
0.4 to 1.5 ms. Not in its shadow are the copy of own rows into symmetric memory (0.07 ms by the bytes), one small kernel in which
the ranks wait for each other, and the addition (0.1 ms).

A buffer may be written again when all peers have read it. They rotate, and which of them were read before the last barrier is
known on all ranks alike, since all do the same: a further barrier is rarely needed.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from lt_train.ops.row_exchange import Compute, Gathered

# A linear layer's backward pass uses two at a time; with three, one that is taken has been read before the last barrier.
SLOTS = 3

Wait = Callable[[], object]


class PeerMemory(Protocol):
    """Buffers that the ranks of `group` can read of each other; `rank` and `size` are those within it."""

    rank: int
    size: int

    @property
    def group(self) -> ProcessGroup | None: ...

    def buffer(self, slot: int, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """This rank's part of a slot. All ranks ask for the same size."""
        ...

    def barrier(self) -> None:
        """What follows on this rank, follows what all ranks did before."""
        ...

    def fetch(self, into: Tensor, slot: int, peer: int, offset: int) -> Wait:
        """Copy the numbers of a peer's part from `offset` on, behind what was started here before; what follows may wait."""
        ...


class _Use:
    """Of a slot: what this rank has to wait for until it has read what it wants."""

    def __init__(self, slot: int):
        self.slot = slot
        self.waits: list[Wait] = []
        self.is_over = False


class PeerExchange:
    """An `ops.row_exchange.Exchange` over `memory`."""

    def __init__(self, memory: PeerMemory):
        self.group = memory.group
        self._memory = memory
        self._turn = 0
        # The last of each slot, and the slots that this rank has read since the last barrier.
        self._uses: dict[int, _Use] = {}
        self._read: set[int] = set()

    def gather(self, own: Tensor, *, whole: bool) -> Gathered:
        memory, count = self._memory, len(own)
        use = self._take()
        memory.buffer(use.slot, count, own.shape[1], own.dtype).copy_(own)
        self._barrier()
        rows = own.new_empty(memory.size * count, own.shape[1])
        peers = [(memory.rank + step) % memory.size for step in range(1, memory.size)]
        waits = {}
        for rank in (*peers, *((memory.rank,) if whole else ())):
            waits[rank] = memory.fetch(rows[rank * count : (rank + 1) * count], use.slot, rank, 0)
        use.waits = list(waits.values())
        return _Arriving(own, rows, memory.rank, waits, lambda: self._finish(use))

    def sum(self, count: int, width: int, like: Tensor, compute: Compute) -> Tensor:
        memory, share = self._memory, count // self._memory.size
        use = self._take()
        buffer = memory.buffer(use.slot, count, width, like.dtype)
        received = like.new_empty(memory.size, share, width)
        for step in range(1, memory.size):
            receiver, sender = (memory.rank + step) % memory.size, (memory.rank - step) % memory.size
            place = slice(receiver * share, (receiver + 1) * share)
            compute(place, buffer[place])
            self._barrier()
            use.waits.append(memory.fetch(received[sender], use.slot, sender, memory.rank * share * width))
        compute(slice(memory.rank * share, (memory.rank + 1) * share), received[memory.rank])
        self._finish(use)
        return _total(received)

    def start_sum(self, count: int, width: int, like: Tensor, compute: Compute) -> Callable[[], Tensor]:
        memory, share = self._memory, count // self._memory.size
        use = self._take()
        compute(slice(0, count), memory.buffer(use.slot, count, width, like.dtype))
        self._barrier()
        received = like.new_empty(memory.size, share, width)
        for step in range(1, memory.size + 1):
            sender = (memory.rank - step) % memory.size
            use.waits.append(memory.fetch(received[sender], use.slot, sender, memory.rank * share * width))

        def finish() -> Tensor:
            self._finish(use)
            return _total(received)

        return finish

    def _take(self) -> _Use:
        """Of the next slot, when no rank reads it any more."""
        slot = self._turn
        self._turn = (slot + 1) % SLOTS
        if slot in self._uses:
            self._finish(self._uses[slot])
        if slot in self._read:
            self._barrier()
        use = self._uses[slot] = _Use(slot)
        return use

    def _finish(self, use: _Use) -> None:
        if not use.is_over:
            for wait in use.waits:
                wait()
            use.is_over = True
            self._read.add(use.slot)

    def _barrier(self) -> None:
        self._memory.barrier()
        self._read.clear()


class _Arriving:
    """Rows of `Gathered`, this rank's first."""

    def __init__(self, own: Tensor, rows: Tensor, rank: int, waits: dict[int, Wait], finish: Callable[[], None]):
        self.count = len(rows)
        self._own, self._rows, self._rank, self._waits, self._finish = own, rows, rank, waits, finish

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        share = len(self._own)
        yield slice(self._rank * share, (self._rank + 1) * share), self._own
        for rank, wait in self._waits.items():
            if rank != self._rank:
                wait()
                place = slice(rank * share, (rank + 1) * share)
                yield place, self._rows[place]
        if self._rank not in self._waits:
            self._finish()

    def whole(self) -> Tensor:
        assert self._rank in self._waits
        self._finish()
        return self._rows


def _total(received: Tensor) -> Tensor:
    """Over the ranks. Torch's sum over a dimension of two does not reach the memory's bandwidth."""
    return received[0] + received[1] if len(received) == 2 else received.sum(0)
