"""Sum the parts of a gradient from several ranks, 16 bits in, float32 out; every number is read and written once."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


def sum_parts(out: Tensor, local_part: Tensor, peer_parts: Tensor, factor: float) -> None:
    """Sum `local_part` [n] and the rows of `peer_parts` [ranks, n] in this order, times `factor`, into float32 `out` [n]."""
    if out.numel():
        _sum[(triton.cdiv(out.numel(), BLOCK),)](
            out, local_part, peer_parts, factor, out.numel(), len(peer_parts), BLOCK, num_warps=8
        )


@triton.jit
def _sum(out, local_part, peer_parts, factor, elements, RANKS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < elements
    total = tl.load(local_part + offsets, mask=inside).to(tl.float32)
    row = peer_parts
    for _ in tl.static_range(RANKS):
        total += tl.load(row + offsets, mask=inside).to(tl.float32)
        row += elements
    tl.store(out + offsets, total * factor, mask=inside)
