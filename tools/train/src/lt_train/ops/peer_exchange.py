"""Exchange the rows of sequence parallelism by copy engines, while GEMMs run: a rank reads its peers' memory.

NCCL's collectives take multiprocessors from the GEMMs, and in the forward pass no GEMM runs beside them. Here a rank copies its
rows into memory that its peers can read (symmetric memory), and copy engines fetch the peers' rows part by part. The GEMM begins
with the local rows and continues with a peer's rows when they arrive. A sum begins with the rows that the peers need: while the
peers fetch them, the rank computes its local share. Sums are computed in float32 and rounded once.

With two ranks, Llama 3 8B's width and 32,768 tokens, a rank fetches 134 MB: 0.4 ms at 350 GB/s by the bytes, hidden by a GEMM of
0.4 to 1.5 ms. Three steps are not hidden: the copy of the local rows into symmetric memory (0.07 ms by the bytes), a small
barrier kernel, and the addition (0.1 ms).
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from lt_train.ops.row_exchange import Compute, Gathered

# A linear layer's backward pass uses two slots at a time. With a third, the next slot was read before the last barrier. All ranks
# know that, because all make the same calls, so reusing a slot rarely needs a further barrier.
SLOTS = 3

Wait = Callable[[], object]


class PeerMemory(Protocol):
    """Buffers of the `size` ranks of `group`, which can read each other's. `rank` is the local rank in the group."""

    rank: int
    size: int

    @property
    def group(self) -> ProcessGroup | None: ...

    def buffer(self, slot: int, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """Return the local buffer of a slot. All ranks request equal sizes."""
        ...

    def barrier(self) -> None:
        """Let later work on this rank run after the earlier work on every rank."""
        ...

    def fetch(self, into: Tensor, slot: int, peer: int, offset: int) -> Wait:
        """Start to copy a peer's buffer from number `offset` on, after earlier local work. Returns a function that waits."""
        ...


class _Use:
    """A use of a slot, with the fetches that this rank has to wait for."""

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
        # The last use by slot, and the slots that this rank has read since the last barrier.
        self._uses: dict[int, _Use] = {}
        self._read: set[int] = set()

    def gather(self, local: Tensor, *, whole: bool) -> Gathered:
        memory, count = self._memory, len(local)
        use = self._take()
        memory.buffer(use.slot, count, local.shape[1], local.dtype).copy_(local)
        self._barrier()
        rows = local.new_empty(memory.size * count, local.shape[1])
        peers = [(memory.rank + step) % memory.size for step in range(1, memory.size)]
        waits = {}
        for rank in (*peers, *((memory.rank,) if whole else ())):
            waits[rank] = memory.fetch(rows[rank * count : (rank + 1) * count], use.slot, rank, 0)
        use.waits = list(waits.values())
        return _Arriving(local, rows, memory.rank, waits, lambda: self._finish(use))

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
        """Begin to use the next slot, as soon as no rank reads it."""
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
    """The rows of a `gather`, local rows first."""

    def __init__(self, local: Tensor, rows: Tensor, rank: int, waits: dict[int, Wait], finish: Callable[[], None]):
        self.count = len(rows)
        self._local, self._rows, self._rank, self._waits, self._finish = local, rows, rank, waits, finish

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        share = len(self._local)
        yield slice(self._rank * share, (self._rank + 1) * share), self._local
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
    """Sum over the ranks. An addition for two ranks, because torch's sum over two elements is slower than the memory."""
    return received[0] + received[1] if len(received) == 2 else received.sum(0)
