"""How tensor-parallel ranks exchange rows [m, h] around the GEMMs of a layer.

A layer has two pairs of GEMMs. Of the first of a pair each rank has some columns of the weight, and all ranks need all rows; of
the second it has a part of the contracted dimension, and the results are summed over the ranks. With sequence parallelism a rank
keeps an equal share of the rows between two pairs: it gathers the others' before, and gets only its share of the sum. The
backward pass does the same with gradients.

Rows arrive in parts, and sums are made in parts, for an exchange that overlaps them with GEMMs (`ops.peer_exchange`). Those of
this module exchange everything at once, by collectives of torch.distributed.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, all_gather_into_tensor, all_reduce, reduce_scatter_tensor

# Writes a result for some of the rows into a tensor of as many.
Compute = Callable[[slice, Tensor], object]


class Gathered(Protocol):
    """The rows of all ranks, `count` of them, of which some may still be on their way."""

    count: int

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Which rows, and the rows, as soon as they are there."""
        ...

    def whole(self) -> Tensor:
        """All, contiguous. Only if that was asked for."""
        ...


class Exchange(Protocol):
    """`group` are the ranks, None for a single one. All of them call the same methods in the same order."""

    @property
    def group(self) -> ProcessGroup | None: ...

    def gather(self, own: Tensor, *, whole: bool) -> Gathered:
        """All ranks' rows, of which this rank has `own`, contiguous. With `whole` they can be had in one tensor, too."""
        ...

    def sum(self, count: int, width: int, like: Tensor, compute: Compute) -> Tensor:
        """This rank's share of the sum of what the ranks compute for `count` rows, of `like`'s type."""
        ...

    def start_sum(self, count: int, width: int, like: Tensor, compute: Compute) -> Callable[[], Tensor]:
        """The same while other work is started; that waits for it, and returns it. `compute` is called once."""
        ...


class Present:
    """Rows that are there, or are when `wait` returns."""

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
    """No exchange."""

    group: ProcessGroup | None = None

    def gather(self, own: Tensor, *, whole: bool) -> Gathered:
        return Present(own)

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

    def gather(self, own: Tensor, *, whole: bool) -> Gathered:
        rows = own.new_empty(self._ranks * len(own), own.shape[1])
        return Present(rows, all_gather_into_tensor(rows, own, group=self.group, async_op=True).wait)

    def start_sum(self, count: int, width: int, like: Tensor, compute: Compute) -> Callable[[], Tensor]:
        results = like.new_empty(count, width)
        compute(slice(0, count), results)
        total = like.new_empty(count // self._ranks, width)
        return partial(_finished, reduce_scatter_tensor(total, results, group=self.group, async_op=True), total, results)


def _finished(work: torch.distributed.Work, total: Tensor, *kept: Tensor) -> Tensor:
    """`kept` are what the collective reads."""
    work.wait()
    return total
