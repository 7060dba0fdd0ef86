"""SwiGLU (Shazeer 2020): silu(gate) x up, where gate and up are the two halves of a row. One kernel forward, one backward.

Per output, the forward kernel moves 3 numbers and the backward kernel 5; megatron-core's compiled pair moves 7 backward. For fp8
the backward kernel also recomputes the output, cast and transposed, so that the forward pass need not save it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lt_train.kernels import SMALLEST_AMAX
from lt_train.kernels.amax_reduction import allocate_parts, magnitude_bits, store_amax
from lt_train.kernels.fp8 import amax

BLOCK = 1024
# The kernel that transposes: rows and columns of a tile, prefetched tiles, and programs that share rows.
TILE_ROWS, TILE_COLUMNS, AHEAD, SHARED_BY = 64, 64, 3, 8


class SwiGLU(torch.autograd.Function):
    """Compute SwiGLU from [..., 2 x width] to [..., width] in float32. Input and output have equal dtypes."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return activation(gate_up)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gradient = gradient.contiguous()
        result = torch.empty_like(gate_up)
        _backward[_grid(gradient)](gradient, gate_up, result, allocate_parts(result), gradient.shape[-1], BLOCK)
        return result


def swiglu(gate_up: Tensor) -> Tensor:
    """Compute SwiGLU of contiguous `gate_up` [..., 2 x width], differentiably."""
    result: Tensor = SwiGLU.apply(gate_up)  # type: ignore[no-untyped-call]
    return result


def activation(gate_up: Tensor) -> Tensor:
    """Compute SwiGLU of contiguous `gate_up` [..., 2 x width] without a gradient."""
    width = gate_up.shape[-1] // 2
    output = gate_up.new_empty(*gate_up.shape[:-1], width)
    _forward[_grid(output)](gate_up, output, allocate_parts(output), width, BLOCK)
    return output


def gradient_and_transpose(gradient: Tensor, gate_up: Tensor, parts: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of `gate_up` [rows, 2 x width], the transpose of the output in fp8, and the transpose's factor.

    Transpose and factor equal the results of `lt_train.kernels.fp8.cast` for the output; `parts` are the output's partial maxima.
    """
    rows, width = gradient.shape
    gradient = gradient.contiguous()
    result = torch.empty_like(gate_up)
    transpose = torch.empty(width, rows, dtype=dtype, device=gate_up.device)
    factor = torch.empty(1, dtype=torch.float32, device=gate_up.device)
    grid = (triton.cdiv(rows, TILE_ROWS), SHARED_BY)
    _backward_and_cast[grid](
        gradient, gate_up, result, allocate_parts(result), parts, transpose, factor, rows, width, torch.finfo(dtype).max,
        SMALLEST_AMAX, TILE_ROWS, TILE_COLUMNS, AHEAD, num_warps=8,
    )  # fmt: skip
    return result, transpose, factor


def _grid(output: Tensor) -> tuple[int, int]:
    return output.numel() // output.shape[-1], triton.cdiv(output.shape[-1], BLOCK)


@triton.jit
def _forward(gate_up, output, parts, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    values = gate * tl.sigmoid(gate) * up
    tl.store(output + row * width + columns, values, mask=inside)
    if parts is not None:
        store_amax(values, output.dtype.element_ty, parts)


@triton.jit
def _backward(gradient, gate_up, result, parts, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate_gradient, up_gradient, _ = gradients(
        gradient + row * width + columns, gate_up, row * 2 * width + columns, result, width, inside
    )
    if parts is not None:
        store_amax(
            tl.maximum(tl.abs(gate_gradient), tl.abs(up_gradient), propagate_nan=tl.PropagateNan.ALL),
            result.dtype.element_ty,
            parts,
        )


@triton.jit
def gradients(gradient, gate_up, offsets, result, width, inside):  # type: ignore[no-untyped-def]
    """Write the gradients of gate (at `offsets`) and up (`width` further) to `result`. Returns both gradients, and the output."""
    gate = tl.load(gate_up + offsets, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + offsets + width, mask=inside, other=0.0).to(tl.float32)
    output = tl.load(gradient, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    gate_gradient, up_gradient = output * up * share * (1 + gate * (1 - share)), output * gate * share
    tl.store(result + offsets, gate_gradient, mask=inside)
    tl.store(result + offsets + width, up_gradient, mask=inside)
    return gate_gradient, up_gradient, gate * share * up


@triton.jit
def _backward_and_cast(  # type: ignore[no-untyped-def]
    gradient, gate_up, result, parts, output_parts, transpose, factor, rows, width, end,
    LEAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    size = amax(output_parts, LEAST)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(factor, size / end)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    amax_bits = tl.zeros([ROWS, COLUMNS], dtype=tl.int32)
    for first_column in tl.range(tl.program_id(1) * COLUMNS, width, tl.num_programs(1) * COLUMNS, num_stages=AHEAD):
        column = first_column + tl.arange(0, COLUMNS)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        offsets = row[:, None] * 2 * width + column[None, :]
        gate_gradient, up_gradient, output = gradients(
            gradient + row[:, None] * width + column[None, :], gate_up, offsets, result, width, inside
        )
        if parts is not None:
            amax_bits = tl.maximum(amax_bits, tl.maximum(magnitude_bits(gate_gradient), magnitude_bits(up_gradient)))
        output = output.to(gate_up.dtype.element_ty).to(tl.float32)
        values = tl.trans(tl.clamp(output * (end / size), -end, end).to(transpose.dtype.element_ty))
        tl.store(transpose + column[:, None].to(tl.int64) * rows + row[None, :], values, mask=tl.trans(inside))
    if parts is not None:
        store_amax(amax_bits.to(tl.float32, bitcast=True), result.dtype.element_ty, parts)
