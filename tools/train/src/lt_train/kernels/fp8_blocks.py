"""Cast to fp8 with a scale for 128 numbers of a row, or for 128 x 128 of a weight, as DeepSeek-V3 does (arXiv:2412.19437).

The scales of a 128 x 128 tile depend on no number outside the tile. So a single reading gives a tensor and its transpose, both
with scales along their rows: 4.06 bytes per number. The casts with one scale per tensor (`lt_train.kernels.fp8`) need the amax
first, which costs another reading if no kernel has stored it.

Scales are float32 as cuBLASLt takes them, not powers of two, so that every block reaches the largest number of the format.
DeepSeek rounds some scales up to powers of two, because it casts fp8 to the fp8 of the transpose; here both casts start from 16
bits.

The sizes of a tensor are multiples of 128.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lt_train.kernels import FP8_BLOCK as BLOCK
from lt_train.kernels import SMALLEST_AMAX
from lt_train.kernels.amax_reduction import magnitude_bits
from lt_train.kernels.swiglu import gradients

# SwiGLU's backward kernel: columns of a tile (its rows are a block), prefetched tiles, and programs that share rows.
TILE_COLUMNS, AHEAD, SHARED_BY = 32, 3, 8

Cast = tuple[Tensor, Tensor]


def cast(tensor: Tensor, dtype: torch.dtype, with_cast: bool, with_transpose: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cast `tensor` [m, n] to fp8. Returns cast, inverse scales [m, n / 128], transpose, and its inverse scales [n, m / 128].

    A block's scale is NaN if the block has a NaN. The scales' first dimension is innermost in memory, as cuBLASLt requires.
    Without `with_cast` the first pair is empty, without `with_transpose` the second.
    """
    rows, columns = tensor.shape
    output, factors = _results(rows, columns, dtype, tensor.device) if with_cast else _none(dtype, tensor.device)
    transpose, other_factors = _results(columns, rows, dtype, tensor.device) if with_transpose else _none(dtype, tensor.device)
    _cast[(rows // BLOCK, columns // BLOCK)](
        tensor, output, factors, transpose, other_factors, rows, columns, torch.finfo(dtype).max, with_cast, with_transpose,
        SMALLEST_AMAX, BLOCK, num_warps=8,
    )  # fmt: skip
    return output, factors, transpose, other_factors


def cast_weight(weight: Tensor, dtype: torch.dtype, transposed: bool, repeats: bool) -> Cast:
    """Cast `weight` [n, k], or its transpose, to fp8. Returns the inverse scales of its 128 x 128 blocks: [n / 128, k / 128].

    With `repeats` a block's scale is repeated for each of its rows, [n, k / 128], laid out as by `cast`.
    """
    rows, columns = weight.shape
    outer, inner = (columns, rows) if transposed else (rows, columns)
    result, factors = _results(outer, inner, dtype, weight.device)
    if not repeats:
        factors = torch.empty(outer // BLOCK, inner // BLOCK, dtype=torch.float32, device=weight.device)
    _cast_weight[(rows // BLOCK, columns // BLOCK)](
        weight, result, factors, rows, columns, torch.finfo(dtype).max, transposed, repeats, SMALLEST_AMAX, BLOCK, num_warps=8
    )
    return result, factors


def swiglu(gate_up: Tensor, dtype: torch.dtype) -> Cast:
    """Compute SwiGLU of `gate_up` [m, 2 n], gates first, round it to its dtype and cast it. Returns [m, n] and [m, n / 128]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    result, factors = _results(rows, width, dtype, gate_up.device)
    _swiglu[(rows // BLOCK, width // BLOCK)](
        gate_up, result, factors, rows, width, torch.finfo(dtype).max, SMALLEST_AMAX, BLOCK, num_warps=8
    )
    return result, factors


def swiglu_gradient(gradient: Tensor, gate_up: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of `gate_up`, and the transpose of SwiGLU's output, cast as by `cast`, with its scales."""
    rows, width = gradient.shape
    result = torch.empty_like(gate_up)
    transpose, factors = _results(width, rows, dtype, gate_up.device)
    _swiglu_gradient[(rows // BLOCK, SHARED_BY)](
        gradient.contiguous(), gate_up, result, transpose, factors, rows, width, torch.finfo(dtype).max,
        SMALLEST_AMAX, BLOCK, TILE_COLUMNS, AHEAD, num_warps=8,
    )  # fmt: skip
    return result, transpose, factors


def _results(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Cast:
    factors = torch.empty(columns // BLOCK, rows, dtype=torch.float32, device=device)
    return torch.empty(rows, columns, dtype=dtype, device=device), factors.t()


def _none(dtype: torch.dtype, device: torch.device) -> Cast:
    return torch.empty(0, dtype=dtype, device=device), torch.empty(0, dtype=torch.float32, device=device)


@triton.jit
def _amax(bits, axis: tl.constexpr, LEAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the amax along an axis of `bits`, absolute values as bits, as a float32 of at least `LEAST`."""
    return tl.maximum(tl.max(bits, axis=axis).to(tl.float32, bitcast=True), LEAST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _cast(  # type: ignore[no-untyped-def]
    tensor, output, factors, transpose, other_factors, rows, columns, end,
    CAST: tl.constexpr, TRANSPOSE: tl.constexpr, LEAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    block_row, block_column = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row, column = block_row * BLOCK + tl.arange(0, BLOCK), block_column * BLOCK + tl.arange(0, BLOCK)
    offsets = row[:, None] * columns + column[None, :]
    values = tl.load(tensor + offsets).to(tl.float32)
    bits = magnitude_bits(values)
    if CAST:
        size = _amax(bits, 1, LEAST)
        tl.store(factors + block_column * rows + row, size / end)
        tl.store(output + offsets, tl.clamp(values * (end / size)[:, None], -end, end).to(output.dtype.element_ty))
    if TRANSPOSE:
        size = _amax(bits, 0, LEAST)
        tl.store(other_factors + block_row * columns + column, size / end)
        transposed_values = tl.trans(tl.clamp(values * (end / size)[None, :], -end, end).to(transpose.dtype.element_ty))
        tl.store(transpose + column[:, None] * rows + row[None, :], transposed_values)


@triton.jit
def _cast_weight(  # type: ignore[no-untyped-def]
    weight, result, factors, rows, columns, end,
    TRANSPOSED: tl.constexpr, REPEATS: tl.constexpr, LEAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    block_row, block_column = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row, column = block_row * BLOCK + tl.arange(0, BLOCK), block_column * BLOCK + tl.arange(0, BLOCK)
    offsets = row[:, None] * columns + column[None, :]
    values = tl.load(weight + offsets).to(tl.float32)
    size = _amax(tl.max(magnitude_bits(values), axis=1), 0, LEAST)
    cast = tl.clamp(values * (end / size), -end, end).to(result.dtype.element_ty)
    if TRANSPOSED:
        tl.store(result + column[:, None] * rows + row[None, :], tl.trans(cast))
        if REPEATS:
            tl.store(factors + block_row * columns + column, tl.zeros([BLOCK], tl.float32) + size / end)
        else:
            tl.store(factors + block_column * tl.num_programs(0) + block_row, size / end)
    else:
        tl.store(result + offsets, cast)
        if REPEATS:
            tl.store(factors + block_column * rows + row, tl.zeros([BLOCK], tl.float32) + size / end)
        else:
            tl.store(factors + block_row * tl.num_programs(1) + block_column, size / end)


@triton.jit
def _swiglu(  # type: ignore[no-untyped-def]
    gate_up, result, factors, rows, width, end, LEAST: tl.constexpr, BLOCK: tl.constexpr
):
    block_row, block_column = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row, column = block_row * BLOCK + tl.arange(0, BLOCK), block_column * BLOCK + tl.arange(0, BLOCK)
    offsets = row[:, None] * 2 * width + column[None, :]
    gate, up = tl.load(gate_up + offsets).to(tl.float32), tl.load(gate_up + offsets + width).to(tl.float32)
    values = (gate * tl.sigmoid(gate) * up).to(gate_up.dtype.element_ty).to(tl.float32)
    size = _amax(magnitude_bits(values), 1, LEAST)
    tl.store(factors + block_column * rows + row, size / end)
    cast = tl.clamp(values * (end / size)[:, None], -end, end).to(result.dtype.element_ty)
    tl.store(result + row[:, None] * width + column[None, :], cast)


@triton.jit
def _swiglu_gradient(  # type: ignore[no-untyped-def]
    gradient, gate_up, result, transpose, factors, rows, width, end,
    LEAST: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    block_row = tl.program_id(0).to(tl.int64)
    row = block_row * BLOCK + tl.arange(0, BLOCK)
    for first_column in tl.range(tl.program_id(1) * COLUMNS, width, tl.num_programs(1) * COLUMNS, num_stages=AHEAD):
        column = first_column + tl.arange(0, COLUMNS)
        offsets = row[:, None] * 2 * width + column[None, :]
        inside = (row < rows)[:, None] & (column < width)[None, :]
        _, _, output = gradients(gradient + row[:, None] * width + column[None, :], gate_up, offsets, result, width, inside)
        output = output.to(gate_up.dtype.element_ty).to(tl.float32)
        size = _amax(magnitude_bits(output), 0, LEAST)
        tl.store(factors + block_row * width + column, size / end)
        transposed_values = tl.trans(tl.clamp(output * (end / size)[None, :], -end, end).to(transpose.dtype.element_ty))
        tl.store(transpose + column[:, None].to(tl.int64) * rows + row[None, :], transposed_values)
