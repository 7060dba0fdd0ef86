"""Cast the operands of torch's grouped fp8 GEMMs: a scale per row, and for a transposed matrix a single scale.

A row is read once, and SwiGLU's output is cast without being written in 16 bits. The rows of a transpose are the columns of the
matrix, and a scale per column would need a second pass over the matrix for the amax. So all rows of the transpose share one
scale, whose amax follows from the scales of the matrix's rows in the forward pass: 3 bytes of memory traffic per number instead
of 5.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lt_train.kernels import SMALLEST_AMAX
from lt_train.kernels.amax_reduction import magnitude_bits

TILE = 128
# Rows up to this width have four warps. Wider rows have eight, and wider rows of SwiGLU sixteen.
WIDE = 4096


def cast_rows(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cast `rows` [m, n] to fp8. Returns the inverse scales, too, float32 [m]; a scale is NaN if its row has a NaN."""
    count, width = rows.shape
    result = torch.empty_like(rows, dtype=dtype)
    factors = torch.empty(count, dtype=torch.float32, device=rows.device)
    if count:
        block = triton.next_power_of_2(width)
        _cast_rows[(count,)](
            rows, result, factors, width, torch.finfo(dtype).max, SMALLEST_AMAX, block, num_warps=4 if block <= WIDE else 8
        )
    return result, factors


def cast_swiglu(gate_up: Tensor, probabilities: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Multiply SwiGLU of `gate_up` [m, 2 n], gates first, by the row's probability, float32 [m], and cast it as `cast_rows` does.

    The product is rounded to `gate_up`'s dtype before the cast. Returns [m, n] and the inverse scales [m].
    """
    count, width = gate_up.shape[0], gate_up.shape[1] // 2
    result = torch.empty(count, width, dtype=dtype, device=gate_up.device)
    factors = torch.empty(count, dtype=torch.float32, device=gate_up.device)
    if count:
        block = triton.next_power_of_2(width)
        _cast_swiglu[(count,)](
            gate_up, probabilities, result, factors, width, torch.finfo(dtype).max, SMALLEST_AMAX, block,
            num_warps=4 if block <= WIDE else 16,
        )  # fmt: skip
    return result, factors


def cast_transposes(matrices: Tensor, scales: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cast the transposes of `matrices` [groups, n, k] to fp8 with the inverse `scales` of the matrices, float32 [groups].

    Returns the casts [groups, k, n], and the scales repeated for their rows [groups, k].
    """
    groups, rows, columns = matrices.shape
    result = torch.empty(groups, columns, rows, dtype=dtype, device=matrices.device)
    factors = torch.empty(groups, columns, dtype=torch.float32, device=matrices.device)
    _cast_transposes[(triton.cdiv(rows, TILE), triton.cdiv(columns, TILE), groups)](
        matrices, scales, result, factors, rows, columns, torch.finfo(dtype).max, TILE, num_warps=8
    )
    return result, factors


@triton.jit
def _cast_rows(rows, result, factors, width, end, LEAST: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    # int64, because row * width may exceed 2^31.
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    values = tl.load(rows + row * width + column, mask=inside, other=0.0).to(tl.float32)
    _store(values, result + row * width + column, inside, factors + row, end, LEAST)


@triton.jit
def _cast_swiglu(  # type: ignore[no-untyped-def]
    gate_up, probabilities, result, factors, width, end, LEAST: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    pointers = gate_up + row * 2 * width + column
    gate = tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(pointers + width, mask=inside, other=0.0).to(tl.float32)
    values = gate * tl.sigmoid(gate) * up * tl.load(probabilities + row)
    # Round as if the product had been written in 16 bits, so that the amax and the cast see the same values as an unfused cast.
    values = values.to(gate_up.dtype.element_ty).to(tl.float32)
    _store(values, result + row * width + column, inside, factors + row, end, LEAST)


@triton.jit
def _store(values, pointers, inside, factor, end, LEAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store a row's `values` scaled by their amax, and the inverse scale."""
    # The maximum of the bits keeps a NaN, and so does `tl.maximum` with ALL. tl.max of the values would drop it.
    size = tl.max(magnitude_bits(values)).to(tl.float32, bitcast=True)
    size = tl.maximum(size, LEAST, propagate_nan=tl.PropagateNan.ALL)
    tl.store(factor, size / end)
    tl.store(pointers, tl.clamp(values * (end / size), -end, end).to(pointers.dtype.element_ty), mask=inside)


@triton.jit
def _cast_transposes(  # type: ignore[no-untyped-def]
    matrices, scales, result, factors, rows, columns, end, TILE: tl.constexpr
):
    group = tl.program_id(2).to(tl.int64)
    first_row, first_column = tl.program_id(0).to(tl.int64) * TILE, tl.program_id(1).to(tl.int64) * TILE
    row, column = first_row + tl.arange(0, TILE), first_column + tl.arange(0, TILE)
    matrix, transpose = matrices + group * rows * columns, result + group * rows * columns
    scale = tl.load(scales + group)
    # The programs of the first tile row write the scales; all programs of a column would write the same.
    if first_row == 0:
        tl.store(factors + group * columns + column, tl.zeros([TILE], tl.float32) + scale, mask=column < columns)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    values = tl.load(matrix + row[:, None] * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
    # Transpose in registers, so that loads and stores both run along contiguous memory.
    values = tl.trans(tl.clamp(values * (1 / scale), -end, end).to(result.dtype.element_ty))
    tl.store(transpose + column[:, None] * rows + row[None, :], values, mask=tl.trans(inside))
