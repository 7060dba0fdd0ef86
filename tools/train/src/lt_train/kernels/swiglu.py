"""SwiGLU (Shazeer 2020): silu(gate) x up, where gate and up are the two halves of a row. One pass forward, one backward.

Forward moves 3 numbers for each of its outputs, backward 5: megatron-core's compiled pair moves 7 backward. For fp8 the pass
backward gives the output again, cast and transposed, too: nothing has to keep it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lt_train.kernels import SMALLEST_AMAX
from lt_train.kernels.amax_reduction import note, noted_with, sizes
from lt_train.kernels.fp8 import amax

BLOCK = 1024
# Of the pass that transposes: a program's tile, how many of them it reads ahead, and how many programs share their rows.
TILE_ROWS, TILE_COLUMNS, AHEAD, SHARED_BY = 64, 64, 3, 8


class SwiGLU(torch.autograd.Function):
    """[..., 2 x width] to [..., width], of one dtype, computed in float32."""

    @staticmethod
    def forward(ctx: Any, halves: Tensor) -> Tensor:
        ctx.save_for_backward(halves)
        return activation(halves)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (halves,) = ctx.saved_tensors
        gradient = gradient.contiguous()
        result = torch.empty_like(halves)
        _backward[_grid(gradient)](gradient, halves, result, noted_with(result), gradient.shape[-1], BLOCK)
        return result


def swiglu(halves: Tensor) -> Tensor:
    """`halves` [..., 2 x width] must be contiguous."""
    result: Tensor = SwiGLU.apply(halves)  # type: ignore[no-untyped-call]
    return result


def activation(halves: Tensor) -> Tensor:
    """The same without a gradient."""
    width = halves.shape[-1] // 2
    output = halves.new_empty(*halves.shape[:-1], width)
    _forward[_grid(output)](halves, output, noted_with(output), width, BLOCK)
    return output


def gradient_and_transpose(gradient: Tensor, halves: Tensor, parts: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of `halves` [rows, 2 x width] from that of the output; the transpose of the output in fp8, and its factor.

    As `lt_train.kernels.fp8.cast` makes them of the output, whose `parts` these are.
    """
    rows, width = gradient.shape
    gradient = gradient.contiguous()
    result = torch.empty_like(halves)
    transpose = torch.empty(width, rows, dtype=dtype, device=halves.device)
    factor = torch.empty(1, dtype=torch.float32, device=halves.device)
    grid = (triton.cdiv(rows, TILE_ROWS), SHARED_BY)
    _backward_and_cast[grid](
        gradient, halves, result, noted_with(result), parts, transpose, factor, rows, width, torch.finfo(dtype).max,
        SMALLEST_AMAX, TILE_ROWS, TILE_COLUMNS, AHEAD, num_warps=8,
    )  # fmt: skip
    return result, transpose, factor


def _grid(output: Tensor) -> tuple[int, int]:
    return output.numel() // output.shape[-1], triton.cdiv(output.shape[-1], BLOCK)


@triton.jit
def _forward(halves, output, parts, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(halves + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(halves + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    product = gate * tl.sigmoid(gate) * up
    tl.store(output + row * width + columns, product, mask=inside)
    if parts is not None:
        note(product, output.dtype.element_ty, parts)


@triton.jit
def _backward(gradient, halves, result, parts, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    of_gate, of_up, _ = _gradients(gradient + row * width + columns, halves, row * 2 * width + columns, result, width, inside)
    if parts is not None:
        note(tl.maximum(tl.abs(of_gate), tl.abs(of_up), propagate_nan=tl.PropagateNan.ALL), result.dtype.element_ty, parts)


@triton.jit
def _gradients(gradient, halves, at, result, width, inside):  # type: ignore[no-untyped-def]
    """Write the gradients of the gates `at` those places of `halves`, and of up behind them; returns both, and the output."""
    gate = tl.load(halves + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(halves + at + width, mask=inside, other=0.0).to(tl.float32)
    output = tl.load(gradient, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    of_gate, of_up = output * up * share * (1 + gate * (1 - share)), output * gate * share
    tl.store(result + at, of_gate, mask=inside)
    tl.store(result + at + width, of_up, mask=inside)
    return of_gate, of_up, gate * share * up


@triton.jit
def _backward_and_cast(  # type: ignore[no-untyped-def]
    gradient, halves, result, parts, output_parts, transpose, factor, rows, width, end,
    LEAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    size = amax(output_parts, LEAST)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(factor, size / end)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    largest = tl.zeros([ROWS, COLUMNS], dtype=tl.int32)
    for left in tl.range(tl.program_id(1) * COLUMNS, width, tl.num_programs(1) * COLUMNS, num_stages=AHEAD):
        column = left + tl.arange(0, COLUMNS)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        at = row[:, None] * 2 * width + column[None, :]
        of_gate, of_up, output = _gradients(gradient + row[:, None] * width + column[None, :], halves, at, result, width, inside)
        if parts is not None:
            largest = tl.maximum(largest, tl.maximum(sizes(of_gate), sizes(of_up)))
        output = output.to(halves.dtype.element_ty).to(tl.float32)
        values = tl.trans(tl.clamp(output * (end / size), -end, end).to(transpose.dtype.element_ty))
        tl.store(transpose + column[:, None].to(tl.int64) * rows + row[None, :], values, mask=tl.trans(inside))
    if parts is not None:
        note(largest.to(tl.float32, bitcast=True), result.dtype.element_ty, parts)
