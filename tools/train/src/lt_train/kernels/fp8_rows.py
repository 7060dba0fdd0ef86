"""Casts to fp8 with a scale for each row, of rows and of the transposes of matrices: what torch's grouped fp8 GEMMs multiply.

A row is read once. The rows of a transpose are the columns of the matrix, which a program reads twice, for their amax and for
their numbers: 5 bytes a number instead of 3, where the cache does not hold them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lt_train.kernels import SMALLEST_AMAX
from lt_train.kernels.amax_reduction import sizes

# Of the transpose: the columns of a program, the rows of its tile, and how many tiles it prefetches.
TILE_COLUMNS, TILE_ROWS, AHEAD = 64, 128, 3
# Above it a row is shared by eight warps.
WIDE = 4096


def cast_rows(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`rows` [m, n] in fp8 and their inverse scales, float32 [m]; a row's is NaN if one of its numbers is."""
    count, width = rows.shape
    result = torch.empty_like(rows, dtype=dtype)
    factors = torch.empty(count, dtype=torch.float32, device=rows.device)
    if count:
        block = triton.next_power_of_2(width)
        _cast_rows[(count,)](
            rows, result, factors, width, torch.finfo(dtype).max, SMALLEST_AMAX, block, num_warps=4 if block <= WIDE else 8
        )
    return result, factors


def cast_transposes(matrices: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The transposes of `matrices` [groups, n, k] in fp8, [groups, k, n], and the inverse scales of their rows, [groups, k]."""
    groups, rows, columns = matrices.shape
    result = torch.empty(groups, columns, rows, dtype=dtype, device=matrices.device)
    factors = torch.empty(groups, columns, dtype=torch.float32, device=matrices.device)
    _cast_transposes[(triton.cdiv(columns, TILE_COLUMNS), groups)](
        matrices,
        result,
        factors,
        rows,
        columns,
        torch.finfo(dtype).max,
        SMALLEST_AMAX,
        TILE_ROWS,
        TILE_COLUMNS,
        AHEAD,
        num_warps=8,
    )
    return result, factors


@triton.jit
def _cast_rows(rows, result, factors, width, end, LEAST: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    values = tl.load(rows + row * width + column, mask=inside, other=0.0).to(tl.float32)
    size = tl.max(sizes(values)).to(tl.float32, bitcast=True)
    size = tl.maximum(size, LEAST, propagate_nan=tl.PropagateNan.ALL)
    tl.store(factors + row, size / end)
    values = tl.clamp(values * (end / size), -end, end).to(result.dtype.element_ty)
    tl.store(result + row * width + column, values, mask=inside)


@triton.jit
def _cast_transposes(  # type: ignore[no-untyped-def]
    matrices, result, factors, rows, columns, end,
    LEAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    matrix, transpose = matrices + group * rows * columns, result + group * rows * columns
    found = tl.zeros([COLUMNS], dtype=tl.int32)
    for above in tl.range(0, rows, ROWS, num_stages=AHEAD):
        row = above + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        values = tl.load(matrix + row[:, None].to(tl.int64) * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
        found = tl.maximum(found, tl.max(sizes(values), axis=0))
    size = tl.maximum(found.to(tl.float32, bitcast=True), LEAST, propagate_nan=tl.PropagateNan.ALL)
    tl.store(factors + group * columns + column, size / end, mask=column < columns)
    for above in tl.range(0, rows, ROWS, num_stages=AHEAD):
        row = above + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        values = tl.load(matrix + row[:, None].to(tl.int64) * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
        values = tl.clamp(values * (end / size)[None, :], -end, end).to(result.dtype.element_ty)
        tl.store(transpose + column[:, None].to(tl.int64) * rows + row[None, :], tl.trans(values), mask=tl.trans(inside))
