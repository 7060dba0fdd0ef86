"""FSDP's sum of gradients over ranks, sent in the 16 bits in which they are computed and summed in float32.

torch's reduce-scatter of float32 sends each number in twice the bytes, and writes them so before. Here each rank gets its part
from every other one and adds the parts up: the same sum of the same numbers, 2 bytes instead of 4 for each that is sent.

Ranks of one node read the parts out of each other's memory by copy engines, which leave the multiprocessors to the GEMMs. Others
exchange them by an all-to-all.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from lt_train.parallel.peer_buffers import PeerBuffer

# Of what comes out, this rank's part, the others' and a factor.
SumParts: TypeAlias = Callable[[Tensor, Tensor, Tensor, float], None]
# FSDP waits for one unit's sum before it fills the next unit's buffer but one.
SLOTS = 2


class GradientSums(ReduceScatter):
    """In place of FSDP's reduce-scatter of gradients in 16 bits; what comes out is float32.

    `slots` are buffers that the group's ranks read of each other, or none. Of the unit whose gradients were in a slot before, all
    ranks have read it: since then each has passed the barrier of the unit after, for which FSDP waits.
    """

    def __init__(self, slots: Sequence[PeerBuffer], sum_parts: SumParts):
        assert len(slots) in (0, SLOTS)
        self._slots = slots
        self._turn = 0
        self._sum_parts = sum_parts
        self._has_input = False

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """What is sent, then what comes out: FSDP asks for these by turns."""
        self._has_input = not self._has_input
        if not self._has_input:
            return torch.empty(*size, dtype=torch.float32, device=device)
        if not self._slots:
            return torch.empty(*size, dtype=dtype, device=device)
        self._turn = (self._turn + 1) % SLOTS
        slot = self._slots[self._turn]
        return slot.of(slot.rank)[: int(size[0])]

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, op: Any, async_op: bool = False) -> None:
        parts, rank = input_tensor.view(group.size(), -1), group.rank()
        received = parts.new_empty(group.size() - bool(self._slots), parts.shape[1])
        if self._slots:
            slot = self._slots[self._turn]
            slot.barrier()
            for step, into in enumerate(received, 1):
                peer = slot.of((rank - step) % group.size())[: input_tensor.numel()]
                into.copy_(peer.view(parts.shape)[rank])
            own, others = parts[rank], received
        else:
            torch.distributed.all_to_all_single(received, parts, group=group)
            own, others = received[0], received[1:]
        self._sum_parts(output_tensor, own, others, 1 / group.size() if op == ReduceOp.AVG else 1.0)


def sum_by_torch(out: Tensor, own: Tensor, others: Tensor, factor: float) -> None:
    """As `lt_train.kernels.gradient_sums.sum_parts`."""
    out.copy_(own)
    for part in others:
        out.add_(part)
    out.mul_(factor)
