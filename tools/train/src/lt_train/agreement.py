"""Small questions on which all ranks must give the same answer, or some would wait for others for ever."""

import torch


def largest(value: int, where: torch.device) -> int:
    """The largest of the ranks' values, the same on all. Every rank must call it at the same place."""
    if torch.distributed.get_world_size() == 1:
        return value
    shared = torch.tensor([value], dtype=torch.int32, device=where)
    torch.distributed.all_reduce(shared, op=torch.distributed.ReduceOp.MAX)
    return int(shared.item())
