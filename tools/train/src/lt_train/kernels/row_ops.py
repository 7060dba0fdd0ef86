"""Operations on the rows of a matrix: dot products with selected rows of a table, and scaling by a factor per row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


def dots(rows: Tensor, table: Tensor, chosen: Tensor) -> Tensor:
    """Multiply row i of `rows` [m, k] by row `chosen[i]` of `table` [n, k]. Returns float32 [m]. `chosen` is int64."""
    result = rows.new_empty(len(rows), dtype=torch.float32)
    _dot[(len(rows),)](rows, table, chosen, result, rows.shape[1], BLOCK, num_warps=4)
    return result


def scale(rows: Tensor, factors: Tensor, out: Tensor) -> Tensor:
    """Write row i of `rows` [m, k] times `factors[i]`, float32, to `out`, which may be `rows`. Tensors are contiguous."""
    width = rows.shape[1]
    _scale[(len(rows), triton.cdiv(width, BLOCK))](rows, factors, out, width, BLOCK, num_warps=4)
    return out


@triton.jit
def _dot(rows, table, chosen, result, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    other = tl.load(chosen + row)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < width
        values = tl.load(rows + row * width + column, mask=inside, other=0.0).to(tl.float32)
        total += values * tl.load(table + other * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(result + row, tl.sum(total))


@triton.jit
def _scale(rows, factors, out, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    values = tl.load(rows + row * width + column, mask=inside).to(tl.float32)
    tl.store(out + row * width + column, values * tl.load(factors + row), mask=inside)
