"""Small questions on which all ranks must give the same answer, or some would wait for others for ever."""

from collections.abc import Sequence

import torch


def largest(value: int, where: torch.device) -> int:
    """The largest of the ranks' values, the same on all. Every rank must call it at the same place."""
    return largest_each([value], where)[0]


def largest_each(values: Sequence[int], where: torch.device) -> list[int]:
    """The same for several values at a time."""
    if torch.distributed.get_world_size() == 1:
        return list(values)
    shared = torch.tensor(values, dtype=torch.int64, device=where)
    torch.distributed.all_reduce(shared, op=torch.distributed.ReduceOp.MAX)
    found: list[int] = shared.tolist()
    return found
