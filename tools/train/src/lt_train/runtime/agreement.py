"""Small questions on which all ranks must give the same answer, or some would wait for others for ever."""

from collections.abc import Callable, Sequence

import torch

from lt_train.runtime.device import CUDA
from lt_train.runtime.reading import Reading


def largest(value: int, where: torch.device) -> int:
    """The largest of the ranks' values, the same on all. Every rank must call it, in the same order of collectives."""
    return asked([value], where)()[0]


def asked(values: Sequence[int], where: torch.device) -> Callable[[], list[int]]:
    """The same for several values at a time, without waiting: the function returned gives the answer."""
    if torch.distributed.get_world_size() == 1:
        return lambda: list(values)
    own = torch.tensor(values, dtype=torch.int64, pin_memory=where.type == CUDA)
    shared = own.to(where, non_blocking=True)
    torch.distributed.all_reduce(shared, op=torch.distributed.ReduceOp.MAX)
    return Reading(shared).values
