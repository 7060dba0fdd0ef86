"""What experts do between their grouped GEMMs: SwiGLU times the router's probability, and the sum over a token's experts.

Forward, SwiGLU reads gate and up, 2 numbers, and writes their product, weighted, 1; backward it reads 3 and writes 3: both
gradients, and the weighted output again for the second matrix's gradient, which so is not kept from the forward pass. The
probability's gradient is a sum over the same numbers. gpt-oss's experts have biases and a clamped SwiGLU; the bias of the second
matrix is added here as well, to the sum.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lt_shared.architecture import CLAMPED_SWIGLU_ALPHA, CLAMPED_SWIGLU_LIMIT

# Of the activation: the elements of a program's tile, whose rows it takes as many of as fit; and of the sum: the columns.
TILE, LEAST_COLUMNS, MOST_COLUMNS, SUMMED_COLUMNS = 4096, 64, 1024, 1024
ALPHA, LIMIT = tl.constexpr(CLAMPED_SWIGLU_ALPHA), tl.constexpr(CLAMPED_SWIGLU_LIMIT)


def weighted_swiglu(gate_up: Tensor, probabilities: Tensor, bias: Tensor | None, group_of_row: Tensor | None) -> Tensor:
    """SwiGLU of `gate_up` [m, 2 n], gates first, times each row's of `probabilities`, float32 [m]: [m, n].

    With `bias` [groups, 2 n], that of a row's group is added to gate and up, and SwiGLU is gpt-oss's, clamped.
    """
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    output = gate_up.new_empty(rows, width)
    if rows:
        height, columns = _tile(width)
        grid = (triton.cdiv(rows, height), triton.cdiv(width, columns))
        _forward[grid](gate_up, probabilities, bias, group_of_row, output, rows, width, height, columns)
    return output


def weighted_swiglu_gradient(
    gradient: Tensor, gate_up: Tensor, probabilities: Tensor, bias: Tensor | None, group_of_row: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """From the `gradient` [m, n] of `weighted_swiglu`: those of `gate_up` and of `probabilities`, and its output, recomputed."""
    rows, width = gradient.shape
    result, output = torch.empty_like(gate_up), torch.empty_like(gradient)
    of_probabilities = torch.empty_like(probabilities)
    if rows:
        height, columns = _tile(width)
        _backward[(triton.cdiv(rows, height),)](
            gradient, gate_up, probabilities, bias, group_of_row, result, output, of_probabilities, rows, width, height, columns
        )
    return result, of_probabilities, output


def sum_rows(rows: Tensor, chosen: Tensor) -> Tensor:
    """For each line of `chosen` [t, k], int32, the sum of those rows of `rows` [m, n], in float32: [t, n], of their dtype.

    A negative number in `chosen` is no row.
    """
    count, each = chosen.shape
    width = rows.shape[1]
    result = rows.new_empty(count, width)
    if count:
        _sum[(count, triton.cdiv(width, SUMMED_COLUMNS))](rows, chosen, result, width, each, SUMMED_COLUMNS)
    return result


def _tile(width: int) -> tuple[int, int]:
    columns = min(MOST_COLUMNS, max(LEAST_COLUMNS, triton.next_power_of_2(width)))
    return TILE // columns, columns


@triton.jit
def _operands(gate_up, bias, group_of_row, row, column, inside, width):  # type: ignore[no-untyped-def]
    at = row[:, None].to(tl.int64) * 2 * width + column[None, :]
    gate = tl.load(gate_up + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + at + width, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        group = tl.load(group_of_row + row, mask=tl.max(inside.to(tl.int32), axis=1) > 0, other=0)
        of_bias = group[:, None].to(tl.int64) * 2 * width + column[None, :]
        gate += tl.load(bias + of_bias, mask=inside, other=0.0).to(tl.float32)
        up += tl.load(bias + of_bias + width, mask=inside, other=0.0).to(tl.float32)
    return gate, up, at


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    gate_up, probabilities, bias, group_of_row, output, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    gate, up, _ = _operands(gate_up, bias, group_of_row, row, column, inside, width)
    probability = tl.load(probabilities + row, mask=row < rows, other=0.0)[:, None]
    if bias is None:
        values = gate * tl.sigmoid(gate) * up
    else:
        gate, up = tl.minimum(gate, LIMIT), tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
        values = gate * tl.sigmoid(gate * ALPHA) * (up + 1)
    tl.store(output + row[:, None].to(tl.int64) * width + column[None, :], values * probability, mask=inside)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    gradient, gate_up, probabilities, bias, group_of_row, result, output, of_probabilities, rows, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    probability = tl.load(probabilities + row, mask=row < rows, other=0.0)[:, None]
    total = tl.zeros([ROWS], dtype=tl.float32)
    for first in range(0, width, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        gate, up, at = _operands(gate_up, bias, group_of_row, row, column, inside, width)
        place = row[:, None].to(tl.int64) * width + column[None, :]
        slope = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
        if bias is None:
            share = tl.sigmoid(gate)
            values = gate * share * up
            of_gate = up * share * (1 + gate * (1 - share))
            of_up = gate * share
        else:
            is_gate, is_up = gate <= LIMIT, (up >= -LIMIT) & (up <= LIMIT)
            gate, up = tl.minimum(gate, LIMIT), tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
            share = tl.sigmoid(gate * ALPHA)
            values = gate * share * (up + 1)
            of_gate = tl.where(is_gate, (up + 1) * share * (1 + gate * ALPHA * (1 - share)), 0.0)
            of_up = tl.where(is_up, gate * share, 0.0)
        total += tl.sum(slope * values, axis=1)
        slope *= probability
        tl.store(result + at, slope * of_gate, mask=inside)
        tl.store(result + at + width, slope * of_up, mask=inside)
        tl.store(output + place, values * probability, mask=inside)
    tl.store(of_probabilities + row, total, mask=row < rows)


@triton.jit
def _sum(rows, chosen, result, width, each, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    line = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    total = tl.zeros([COLUMNS], dtype=tl.float32)
    for number in range(each):
        row = tl.load(chosen + line * each + number).to(tl.int64)
        total += tl.load(rows + row * width + column, mask=inside & (row >= 0), other=0.0).to(tl.float32)
    tl.store(result + line * width + column, total, mask=inside)
