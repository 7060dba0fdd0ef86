"""FSDP's reduce-scatter of gradients: sent in 16 bits, summed in float32.

torch's reduce-scatter would cast the gradients to float32 before it sends them. Here each rank receives its part from every other
rank and adds the parts up. The sum is equal, and a number costs 2 bytes of traffic instead of 4.

Ranks on the same node read the parts from each other's memory by copy engines, which leave the multiprocessors to the GEMMs.
Ranks on several nodes exchange the parts by an all-to-all.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from lt_train.parallel.peer_buffers import PeerBuffer

# Arguments: output, local part, parts of the other ranks, factor.
SumParts: TypeAlias = Callable[[Tensor, Tensor, Tensor, float], None]
# FSDP waits for the sum of a unit before it fills the buffer of the second unit after it, so two buffers suffice.
SLOTS = 2


class GradientSums(ReduceScatter):
    """Replaces FSDP's reduce-scatter of 16-bit gradients. The output is float32.

    `slots` are buffers that the ranks of the group read from each other; empty for an all-to-all. A slot can be filled again
    without a further barrier: all ranks have read its previous content, because each has passed the barrier of the unit in
    between: FSDP waits for that unit.
    """

    def __init__(self, slots: Sequence[PeerBuffer], sum_parts: SumParts):
        assert len(slots) in (0, SLOTS)
        self._slots = slots
        self._turn = 0
        self._sum_parts = sum_parts
        self._has_input = False

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate the input and the output. FSDP calls this for the input of a unit first, then for its output."""
        self._has_input = not self._has_input
        if not self._has_input:
            return torch.empty(*size, dtype=torch.float32, device=device)
        if not self._slots:
            return torch.empty(*size, dtype=dtype, device=device)
        self._turn = (self._turn + 1) % SLOTS
        slot = self._slots[self._turn]
        return slot.rank_buffer(slot.rank)[: int(size[0])]

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, op: Any, async_op: bool = False) -> None:
        parts, rank = input_tensor.view(group.size(), -1), group.rank()
        received = parts.new_empty(group.size() - bool(self._slots), parts.shape[1])
        if self._slots:
            slot = self._slots[self._turn]
            slot.barrier()
            for step, into in enumerate(received, 1):
                peer = slot.rank_buffer((rank - step) % group.size())[: input_tensor.numel()]
                into.copy_(peer.view(parts.shape)[rank])
            local_part, peer_parts = parts[rank], received
        else:
            torch.distributed.all_to_all_single(received, parts, group=group)
            local_part, peer_parts = received[0], received[1:]
        self._sum_parts(output_tensor, local_part, peer_parts, 1 / group.size() if op == ReduceOp.AVG else 1.0)


def sum_by_torch(out: Tensor, local_part: Tensor, peer_parts: Tensor, factor: float) -> None:
    """Sum as `lt_train.kernels.gradient_sums.sum_parts` does, without Triton."""
    out.copy_(local_part)
    for part in peer_parts:
        out.add_(part)
    out.mul_(factor)
