"""Cast a tensor and its transpose to fp8, scaled by the tensor's amax, in a single reading.

fp8 GEMMs need the contracted dimension innermost in both operands, so a tensor is needed in both layouts. Compiled by torch, the
casts of a step of Llama 3 8B's width took 54 of 657 ms on an H200, at half the memory's speed; PERFORMANCE.md has the time of
this kernel.
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
    with one element, NaN if `tensor` has a NaN. Without `with_cast` the cast is empty, without `with_transpose` the transpose.
    """
    rows, columns = tensor.shape
    end = torch.finfo(dtype).max
    output = torch.empty((rows, columns) if with_cast else 0, dtype=dtype, device=tensor.device)
    transpose = torch.empty((columns, rows) if with_transpose else 0, dtype=dtype, device=tensor.device)
    factor = torch.empty(1, dtype=torch.float32, device=tensor.device)
    parts = amax_reduction.amax_parts(tensor) if parts is None else parts
    grid = (triton.cdiv(rows, TILE), triton.cdiv(columns, TILE))
    _cast[grid](
        tensor, parts, output, transpose, factor, rows, columns, end, with_cast, with_transpose, SMALLEST_AMAX, TILE, num_warps=8
    )
    return output, transpose, factor


def transpose_fp8(tensor: Tensor) -> Tensor:
    """Return the contiguous transpose of the fp8 `tensor` [rows, columns]. The scale is one, so the numbers stay equal."""
    largest = torch.tensor(torch.finfo(tensor.dtype).max).view(torch.int32)
    parts = torch.full((PARTS.value,), int(largest), dtype=torch.int32, device=tensor.device)
    _, transpose, _ = cast(tensor, parts, tensor.dtype, with_cast=False, with_transpose=True)
    return transpose


@triton.jit
def _cast(  # type: ignore[no-untyped-def]
    tensor, parts, output, transpose, factor, rows, columns, end,
    CAST: tl.constexpr, TRANSPOSE: tl.constexpr, LEAST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    first_row, first_column = tl.program_id(0).to(tl.int64) * TILE, tl.program_id(1).to(tl.int64) * TILE
    size = amax(parts, LEAST)
    if (first_row == 0) & (first_column == 0):
        tl.store(factor, size / end)
    row, column = first_row + tl.arange(0, TILE), first_column + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    values = tl.load(tensor + row[:, None] * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
    values = tl.clamp(values * (end / size), -end, end)
    if CAST:
        tl.store(output + row[:, None] * columns + column[None, :], values.to(output.dtype.element_ty), mask=inside)
    if TRANSPOSE:
        values = tl.trans(values.to(transpose.dtype.element_ty))
        tl.store(transpose + column[:, None] * rows + row[None, :], values, mask=tl.trans(inside))


@triton.jit
def amax(parts, LEAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the amax of the partial maxima `parts`, as a float32 of at least `LEAST`, so that the caller may divide by it."""
    size = tl.max(tl.load(parts + tl.arange(0, PARTS))).to(tl.float32, bitcast=True)
    return tl.maximum(size, LEAST, propagate_nan=tl.PropagateNan.ALL)
