"""Casts to fp8 with a scale for each 128 numbers of a row, or for each 128 x 128 of a weight: DeepSeek-V3's (arXiv:2412.19437).

A tile of 128 x 128 has all that its scales depend on, so that nothing is read twice: a tensor and its transpose, each with scales
along its own rows, come from one reading, 4.06 bytes a number. The casts of a whole tensor (`lt_train.kernels.fp8`) need its amax
before, which costs another reading where no kernel has noted it.

Scales are float32 as cuBLASLt takes them, not powers of two: each block then reaches the largest number of its format. DeepSeek
rounds some up to powers of two because it casts fp8 to the fp8 of the transpose; here both come from 16 bits.

The sizes of a tensor are multiples of 128.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lt_train.kernels import FP8_BLOCK as BLOCK
from lt_train.kernels import SMALLEST_AMAX
from lt_train.kernels.amax_reduction import sizes
from lt_train.kernels.swiglu import gradients

# Columns of a program's tile of SwiGLU, whose rows are a block, and how many tiles it prefetches.
TILE_COLUMNS, AHEAD, SHARED_BY = 32, 3, 8

Cast = tuple[Tensor, Tensor]


def cast(tensor: Tensor, dtype: torch.dtype, with_cast: bool, with_transpose: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`tensor` [m, n] in fp8 with its inverse scales [m, n / 128], and its transpose with [n, m / 128].

    A block's scale is NaN if a number of the block is. The scales' first dimension is innermost in memory, as cuBLASLt wants it.
    Without `with_cast` or `with_transpose` those results are empty.
    """
    rows, columns = tensor.shape
    same, factors = _results(rows, columns, dtype, tensor.device) if with_cast else _none(dtype, tensor.device)
    transpose, other_factors = _results(columns, rows, dtype, tensor.device) if with_transpose else _none(dtype, tensor.device)
    _cast[(rows // BLOCK, columns // BLOCK)](
        tensor, same, factors, transpose, other_factors, rows, columns, torch.finfo(dtype).max, with_cast, with_transpose,
        SMALLEST_AMAX, BLOCK, num_warps=8,
    )  # fmt: skip
    return same, factors, transpose, other_factors


def cast_weight(weight: Tensor, dtype: torch.dtype, transposed: bool, repeats: bool) -> Cast:
    """`weight` [n, k], or its transpose, in fp8 with the inverse scales of its 128 x 128 blocks: [n / 128, k / 128].

    With `repeats` a scale stands there for each of the block's rows, [n, k / 128], laid out as `cast` does.
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
    """SwiGLU of `gate_up` [m, 2 n], gates first, rounded to its dtype and cast as `cast` does: [m, n] and [m, n / 128]."""
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
    """Of absolute values as bits, along an axis, as a float32 that can be divided by."""
    return tl.maximum(tl.max(bits, axis=axis).to(tl.float32, bitcast=True), LEAST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _cast(  # type: ignore[no-untyped-def]
    tensor, same, factors, transpose, other_factors, rows, columns, end,
    CAST: tl.constexpr, TRANSPOSE: tl.constexpr, LEAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    above, before = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row, column = above * BLOCK + tl.arange(0, BLOCK), before * BLOCK + tl.arange(0, BLOCK)
    at = row[:, None] * columns + column[None, :]
    values = tl.load(tensor + at).to(tl.float32)
    bits = sizes(values)
    if CAST:
        size = _amax(bits, 1, LEAST)
        tl.store(factors + before * rows + row, size / end)
        tl.store(same + at, tl.clamp(values * (end / size)[:, None], -end, end).to(same.dtype.element_ty))
    if TRANSPOSE:
        size = _amax(bits, 0, LEAST)
        tl.store(other_factors + above * columns + column, size / end)
        turned = tl.trans(tl.clamp(values * (end / size)[None, :], -end, end).to(transpose.dtype.element_ty))
        tl.store(transpose + column[:, None] * rows + row[None, :], turned)


@triton.jit
def _cast_weight(  # type: ignore[no-untyped-def]
    weight, result, factors, rows, columns, end,
    TRANSPOSED: tl.constexpr, REPEATS: tl.constexpr, LEAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    above, before = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row, column = above * BLOCK + tl.arange(0, BLOCK), before * BLOCK + tl.arange(0, BLOCK)
    at = row[:, None] * columns + column[None, :]
    values = tl.load(weight + at).to(tl.float32)
    size = _amax(tl.max(sizes(values), axis=1), 0, LEAST)
    cast = tl.clamp(values * (end / size), -end, end).to(result.dtype.element_ty)
    if TRANSPOSED:
        tl.store(result + column[:, None] * rows + row[None, :], tl.trans(cast))
        if REPEATS:
            tl.store(factors + above * columns + column, tl.zeros([BLOCK], tl.float32) + size / end)
        else:
            tl.store(factors + before * tl.num_programs(0) + above, size / end)
    else:
        tl.store(result + at, cast)
        if REPEATS:
            tl.store(factors + before * rows + row, tl.zeros([BLOCK], tl.float32) + size / end)
        else:
            tl.store(factors + above * tl.num_programs(1) + before, size / end)


@triton.jit
def _swiglu(  # type: ignore[no-untyped-def]
    gate_up, result, factors, rows, width, end, LEAST: tl.constexpr, BLOCK: tl.constexpr
):
    above, before = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row, column = above * BLOCK + tl.arange(0, BLOCK), before * BLOCK + tl.arange(0, BLOCK)
    at = row[:, None] * 2 * width + column[None, :]
    gate, up = tl.load(gate_up + at).to(tl.float32), tl.load(gate_up + at + width).to(tl.float32)
    values = (gate * tl.sigmoid(gate) * up).to(gate_up.dtype.element_ty).to(tl.float32)
    size = _amax(sizes(values), 1, LEAST)
    tl.store(factors + before * rows + row, size / end)
    cast = tl.clamp(values * (end / size)[:, None], -end, end).to(result.dtype.element_ty)
    tl.store(result + row[:, None] * width + column[None, :], cast)


@triton.jit
def _swiglu_gradient(  # type: ignore[no-untyped-def]
    gradient, gate_up, result, transpose, factors, rows, width, end,
    LEAST: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    above = tl.program_id(0).to(tl.int64)
    row = above * BLOCK + tl.arange(0, BLOCK)
    for left in tl.range(tl.program_id(1) * COLUMNS, width, tl.num_programs(1) * COLUMNS, num_stages=AHEAD):
        column = left + tl.arange(0, COLUMNS)
        at = row[:, None] * 2 * width + column[None, :]
        inside = (row < rows)[:, None] & (column < width)[None, :]
        _, _, output = gradients(gradient + row[:, None] * width + column[None, :], gate_up, at, result, width, inside)
        output = output.to(gate_up.dtype.element_ty).to(tl.float32)
        size = _amax(sizes(output), 0, LEAST)
        tl.store(factors + above * width + column, size / end)
        turned = tl.trans(tl.clamp(output * (end / size)[None, :], -end, end).to(transpose.dtype.element_ty))
        tl.store(transpose + column[:, None].to(tl.int64) * rows + row[None, :], turned)
