"""Casts to fp8: a tensor and its transpose, scaled by its largest number, from one reading.

Products in fp8 want the summed dimension innermost in both factors, so that a tensor is needed in both orders. Compiled by torch,
the casts of a step of Llama 3 8B's width took 54 of 657 ms on an H200, at half the memory's speed; PERFORMANCE.md has this one.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lt_train.kernels import SMALLEST_AMAX, amax_reduction
from lt_train.kernels.amax_reduction import PARTS

TILE = 128


def cast(tensor: Tensor, parts: Tensor | None, dtype: torch.dtype, straight: bool, turned: bool) -> tuple[Tensor, Tensor, Tensor]:
    """`tensor` [rows, columns] in fp8 with its largest number at the range's end, its transpose, and the factor that undoes that.

    `parts` are those of `lt_train.kernels.amax_reduction`; None asks for them. The factor is float32 of one element, NaN if a
    number of `tensor` is. What is not asked for, `straight` or `turned`, is empty.
    """
    rows, columns = tensor.shape
    end = torch.finfo(dtype).max
    same = torch.empty((rows, columns) if straight else 0, dtype=dtype, device=tensor.device)
    transpose = torch.empty((columns, rows) if turned else 0, dtype=dtype, device=tensor.device)
    factor = torch.empty(1, dtype=torch.float32, device=tensor.device)
    parts = amax_reduction.of(tensor) if parts is None else parts
    grid = (triton.cdiv(rows, TILE), triton.cdiv(columns, TILE))
    _cast[grid](tensor, parts, same, transpose, factor, rows, columns, end, straight, turned, SMALLEST_AMAX, TILE, num_warps=8)
    return same, transpose, factor


@triton.jit
def _cast(  # type: ignore[no-untyped-def]
    tensor, parts, same, transpose, factor, rows, columns, end,
    STRAIGHT: tl.constexpr, TURNED: tl.constexpr, LEAST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    top, left = tl.program_id(0).to(tl.int64) * TILE, tl.program_id(1).to(tl.int64) * TILE
    size = amax(parts, LEAST)
    if (top == 0) & (left == 0):
        tl.store(factor, size / end)
    row, column = top + tl.arange(0, TILE), left + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    values = tl.load(tensor + row[:, None] * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
    values = tl.clamp(values * (end / size), -end, end)
    if STRAIGHT:
        tl.store(same + row[:, None] * columns + column[None, :], values.to(same.dtype.element_ty), mask=inside)
    if TURNED:
        values = tl.trans(values.to(transpose.dtype.element_ty))
        tl.store(transpose + column[:, None] * rows + row[None, :], values, mask=tl.trans(inside))


@triton.jit
def amax(parts, LEAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """The largest of `parts`, as a float32 that can be divided by."""
    size = tl.max(tl.load(parts + tl.arange(0, PARTS))).to(tl.float32, bitcast=True)
    return tl.maximum(size, LEAST, propagate_nan=tl.PropagateNan.ALL)
