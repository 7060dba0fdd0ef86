"""The sum of what several ranks have of a gradient, in 16 bits: in float32, each number read and written once."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


def sum_parts(out: Tensor, own: Tensor, others: Tensor, factor: float) -> None:
    """`out` [n], float32, becomes `own` [n] plus the rows of `others` [ranks, n], always in that order, times `factor`."""
    if out.numel():
        _sum[(triton.cdiv(out.numel(), BLOCK),)](out, own, others, factor, out.numel(), len(others), BLOCK, num_warps=8)


@triton.jit
def _sum(out, own, others, factor, elements, RANKS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < elements
    total = tl.load(own + at, mask=inside).to(tl.float32)
    row = others
    for _ in tl.static_range(RANKS):
        total += tl.load(row + at, mask=inside).to(tl.float32)
        row += elements
    tl.store(out + at, total * factor, mask=inside)
