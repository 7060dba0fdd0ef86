"""Casts to fp8: a tensor and its transpose, scaled by its amax, from one reading.

fp8 GEMMs need the contracted dimension innermost in both operands, so that a tensor is needed in both layouts. Compiled by torch,
the casts of a step of Llama 3 8B's width took 54 of 657 ms on an H200, at half the memory's speed; PERFORMANCE.md has this one.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lt_train.kernels import SMALLEST_AMAX, amax_reduction
from lt_train.kernels.amax_reduction import PARTS

TILE = 128


def cast(
    tensor: Tensor, parts: Tensor | None, dtype: torch.dtype, with_cast: bool, with_transpose: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Cast `tensor` [rows, columns] to fp8, its amax scaled to `dtype`'s maximum. Returns cast, transpose and inverse scale.

    `parts` are the partial maxima of `lt_train.kernels.amax_reduction`; None computes them. The inverse scale is a float32 tensor
    with one element, NaN if a number of `tensor` is. Without `with_cast` or `with_transpose` that result is empty.
    """
    rows, columns = tensor.shape
    end = torch.finfo(dtype).max
    same = torch.empty((rows, columns) if with_cast else 0, dtype=dtype, device=tensor.device)
    transpose = torch.empty((columns, rows) if with_transpose else 0, dtype=dtype, device=tensor.device)
    factor = torch.empty(1, dtype=torch.float32, device=tensor.device)
    parts = amax_reduction.amax_parts(tensor) if parts is None else parts
    grid = (triton.cdiv(rows, TILE), triton.cdiv(columns, TILE))
    _cast[grid](
        tensor, parts, same, transpose, factor, rows, columns, end, with_cast, with_transpose, SMALLEST_AMAX, TILE, num_warps=8
    )
    return same, transpose, factor


def transposed(tensor: Tensor) -> Tensor:
    """Return the contiguous transpose of the fp8 `tensor` [rows, columns]. The scale is one, so the numbers stay equal."""
    largest = torch.tensor(torch.finfo(tensor.dtype).max).view(torch.int32)
    parts = torch.full((PARTS.value,), int(largest), dtype=torch.int32, device=tensor.device)
    _, transpose, _ = cast(tensor, parts, tensor.dtype, with_cast=False, with_transpose=True)
    return transpose


@triton.jit
def _cast(  # type: ignore[no-untyped-def]
    tensor, parts, same, transpose, factor, rows, columns, end,
    CAST: tl.constexpr, TRANSPOSE: tl.constexpr, LEAST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    top, left = tl.program_id(0).to(tl.int64) * TILE, tl.program_id(1).to(tl.int64) * TILE
    size = amax(parts, LEAST)
    if (top == 0) & (left == 0):
        tl.store(factor, size / end)
    row, column = top + tl.arange(0, TILE), left + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    values = tl.load(tensor + row[:, None] * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
    values = tl.clamp(values * (end / size), -end, end)
    if CAST:
        tl.store(same + row[:, None] * columns + column[None, :], values.to(same.dtype.element_ty), mask=inside)
    if TRANSPOSE:
        values = tl.trans(values.to(transpose.dtype.element_ty))
        tl.store(transpose + column[:, None] * rows + row[None, :], values, mask=tl.trans(inside))


@triton.jit
def amax(parts, LEAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """The amax of partial maxima `parts`, as a float32 that can be divided by."""
    size = tl.max(tl.load(parts + tl.arange(0, PARTS))).to(tl.float32, bitcast=True)
    return tl.maximum(size, LEAST, propagate_nan=tl.PropagateNan.ALL)
