"""Exchange rows [m, h] between tensor-parallel ranks before and after a layer's GEMMs.

A layer has two pairs of GEMMs. In the first GEMM of a pair each rank holds some columns of the weight and needs all rows. In the
second it holds a part of the contracted dimension, and the ranks sum their results. With sequence parallelism a rank holds an
equal share of the rows between two pairs: it gathers the peers' rows before a pair, and receives only its share of the sum. The
backward pass exchanges gradients likewise.

The interface passes rows and sums in parts, so that `ops.peer_exchange` can overlap them with GEMMs. The exchanges of this module
pass all rows at once, by collectives of torch.distributed.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, all_gather_into_tensor, all_reduce, reduce_scatter_tensor

# Writes the result for a slice of the rows into a tensor with as many rows.
Compute = Callable[[slice, Tensor], object]


class Gathered(Protocol):
    """`count` rows, gathered from the ranks. Some rows may not have arrived."""

    count: int

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the parts in the order of their arrival: their indices and their rows."""
        ...

    def whole(self) -> Tensor:
        """Return all rows in one contiguous tensor. Requires `gather` with `whole`."""
        ...


class Exchange(Protocol):
    """Exchange rows between the ranks of `group`, None for one rank. All ranks call equal methods in equal order."""

    @property
    def group(self) -> ProcessGroup | None: ...

    def gather(self, local: Tensor, *, whole: bool) -> Gathered:
        """Gather the rows of every rank. `local` is contiguous. With `whole`, the result has them in one tensor, too."""
        ...

    def sum(self, count: int, width: int, like: Tensor, compute: Compute) -> Tensor:
        """Sum the output of `compute` for `count` rows over the ranks. Returns the local share, with the type of `like`."""
        ...

    def start_sum(self, count: int, width: int, like: Tensor, compute: Compute) -> Callable[[], Tensor]:
        """Start `sum`, and call `compute` once. The returned function waits for the sum and returns it."""
        ...


class Present:
    """Rows in one tensor, complete when `wait` returns."""

    def __init__(self, rows: Tensor, wait: Callable[[], object] | None = None):
        self.count = len(rows)
        self._rows, self._wait = rows, wait

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        yield slice(0, self.count), self.whole()

    def whole(self) -> Tensor:
        if self._wait is not None:
            self._wait()
            self._wait = None
        return self._rows


class OneRank:
    """Exchange nothing, because one rank has all rows and the whole weight."""

    group: ProcessGroup | None = None

    def gather(self, local: Tensor, *, whole: bool) -> Gathered:
        return Present(local)

    def sum(self, count: int, width: int, like: Tensor, compute: Compute) -> Tensor:
        return self.start_sum(count, width, like, compute)()

    def start_sum(self, count: int, width: int, like: Tensor, compute: Compute) -> Callable[[], Tensor]:
        total = like.new_empty(count, width)
        compute(slice(0, count), total)
        return lambda: total


class AllRows(OneRank):
    """Every rank has all rows."""

    def __init__(self, group: ProcessGroup):
        self.group = group

    def start_sum(self, count: int, width: int, like: Tensor, compute: Compute) -> Callable[[], Tensor]:
        total = like.new_empty(count, width)
        compute(slice(0, count), total)
        return partial(_finished, all_reduce(total, group=self.group, async_op=True), total)


class SharedRows(OneRank):
    """Sequence parallelism: every rank has an equal share of the rows, in the order of the ranks."""

    def __init__(self, group: ProcessGroup):
        self.group = group
        self._ranks = group.size()

    def gather(self, local: Tensor, *, whole: bool) -> Gathered:
        rows = local.new_empty(self._ranks * len(local), local.shape[1])
        return Present(rows, all_gather_into_tensor(rows, local, group=self.group, async_op=True).wait)

    def start_sum(self, count: int, width: int, like: Tensor, compute: Compute) -> Callable[[], Tensor]:
        results = like.new_empty(count, width)
        compute(slice(0, count), results)
        total = like.new_empty(count // self._ranks, width)
        return partial(_finished, reduce_scatter_tensor(total, results, group=self.group, async_op=True), total, results)


def _finished(work: torch.distributed.Work, total: Tensor, *sources: Tensor) -> Tensor:
    """Wait for a collective. `sources` keep the tensors that it reads alive."""
    work.wait()
    return total
