"""The sum of squares of many tensors, at 3.5 TB/s in 16 bits and 4.2 TB/s in 32 bits for Llama 3 8B's width on an H200.

torch's norms of lists of tensors reach 2.3 and 3.3 TB/s (2026-11-22).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
# A program reads this number of blocks one after the other.
BLOCKS = 8


def sum_of_squares(tensors: list[Tensor], device: torch.device) -> Tensor:
    """Sum the squares of the elements of contiguous `tensors`. Returns a float32 tensor with one element, deterministic."""
    programs = [triton.cdiv(tensor.numel(), BLOCK * BLOCKS) for tensor in tensors]
    sums = torch.zeros(sum(programs), device=device)
    first = 0
    for tensor, count in zip(tensors, programs, strict=True):
        if count:
            _sum[(count,)](tensor, sums[first:], tensor.numel(), BLOCK, BLOCKS, num_warps=8)
        first += count
    return sums.sum().view(1)


@triton.jit
def _sum(tensor, sums, elements, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):  # type: ignore[no-untyped-def]
    start = tl.program_id(0).to(tl.int64) * BLOCK * BLOCKS
    total = tl.zeros((BLOCK,), tl.float32)
    for number in range(BLOCKS):
        offsets = start + number * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(tensor + offsets, mask=offsets < elements, other=0).to(tl.float32)
        total += values * values
    tl.store(sums + tl.program_id(0), tl.sum(total))
