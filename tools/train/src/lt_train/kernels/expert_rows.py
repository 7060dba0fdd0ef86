"""Row operations between the grouped GEMMs of experts. A token has one row for each of its experts.

These are the order of the rows, the rows themselves, SwiGLU times the router's probability, and the sum of a token's rows.

Forward, SwiGLU reads gate and up, 2 numbers, and writes their product, weighted, 1; backward it reads 3 and writes 3: both
gradients, and the weighted output again for the second matrix's gradient, which so is not kept from the forward pass. The
probability's gradient is a sum over the same numbers. gpt-oss's experts have biases and a clamped SwiGLU; the bias of the second
matrix is added here as well, to the sum.

Rows are sorted by expert, and by token within an expert's block. Blocks of tokens count how many go to each expert; a sum over
these numbers, by expert and then by block, says where each block's rows begin, and within a block they are counted again. It is
exact and the same each time, and the host waits for nothing. By torch's operations (`lt_train.ops.expert_rows`) it is some 20
kernels a layer, here five.

A token is read once and written for each of its experts. Gathered by the rows, which are sorted by expert, it would be read as
often: tokens do not stay in the cache from one expert to the next.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lt_shared.models.architecture import CLAMPED_SWIGLU_ALPHA, CLAMPED_SWIGLU_LIMIT

# Of the activation: the elements of a program's tile, whose rows it takes as many of as fit; and of the sum: the columns.
TILE, LEAST_COLUMNS, MOST_COLUMNS, SUMMED_COLUMNS = 2048, 64, 1024, 1024
# Of a token that is spread, a program's part.
SPREAD_BYTES = 2048
# Of the routing: the elements of a program's tile, which takes as many tokens as fit.
MAP_TILE = 2048
ALPHA, LIMIT = tl.constexpr(CLAMPED_SWIGLU_ALPHA), tl.constexpr(CLAMPED_SWIGLU_LIMIT)


def count_rows(routing_map: Tensor) -> tuple[Tensor, Tensor]:
    """The borders of the experts' blocks of rows, int32 [n + 1], of `routing_map` [t, n], bool, and what `order_rows` needs.

    That is how many rows are before each block of tokens, by expert, and how many there are: int32 [n x blocks + 1].
    """
    tokens, experts = routing_map.shape
    height, columns, programs = _map_tile(tokens, experts)
    counts = torch.empty(experts * programs, dtype=torch.int32, device=routing_map.device)
    before = torch.zeros(experts * programs + 1, dtype=torch.int32, device=routing_map.device)
    if tokens:
        _count[(programs,)](_bytes(routing_map), counts, tokens, experts, height, columns)
        torch.cumsum(counts, 0, dtype=torch.int32, out=before[1:])
        return before[::programs].contiguous(), before
    return before.new_zeros(experts + 1), before


def order_rows(routing_map: Tensor, most: int, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the token and the expert of every row, int64 [t x `most`], and every token's rows, int32 [t, most], by expert.

    `routing_map` [t, n], bool, has up to `most` in each line. Where it has fewer, the last tokens and experts are not set, and -1
    stands for the rows that a token lacks.
    """
    tokens, experts = routing_map.shape
    height, columns, programs = _map_tile(tokens, experts)
    token, expert = torch.empty(2, tokens * most, dtype=torch.int64, device=routing_map.device)
    rows = torch.empty(tokens, most, dtype=torch.int32, device=routing_map.device)
    if tokens:
        width = triton.next_power_of_2(most)
        _order[(programs,)](_bytes(routing_map), known, token, expert, rows, tokens, experts, most, height, columns, width)
    return token, expert, rows


def weighted_swiglu(gate_up: Tensor, probabilities: Tensor, bias: Tensor | None, group_of_row: Tensor | None) -> Tensor:
    """SwiGLU of `gate_up` [m, 2 n], gates first, times each row's of `probabilities`, float32 [m]: [m, n].

    With `bias` [groups, 2 n], the bias of a row's group is added to gate and up, and SwiGLU is gpt-oss's, clamped.
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
    """Return the gradients of `gate_up` and `probabilities` from the output's `gradient` [m, n], and the recomputed output."""
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
    """Sum the rows of `rows` [m, n] that each line of `chosen` [t, k], int32, selects, in float32. Returns [t, n], `rows.dtype`.

    A negative number in `chosen` is no row.
    """
    count, each = chosen.shape
    width = rows.shape[1]
    result = rows.new_empty(count, width)
    if count:
        _sum[(count, triton.cdiv(width, SUMMED_COLUMNS))](rows, chosen, result, width, each, SUMMED_COLUMNS)
    return result


def spread_rows(tokens: Tensor, chosen: Tensor, token_of_row: Tensor) -> Tensor:
    """`tokens` [t, n] as rows [m, n]: token i is each row that line i of `chosen` [t, k], int32, names.

    A negative number is no row. `token_of_row` [m] says the same by the rows.
    """
    if tokens.dim() == 1:
        return tokens.index_select(0, token_of_row)
    count, width = tokens.shape
    result = tokens.new_empty(len(token_of_row), width)
    if count:
        columns = SPREAD_BYTES // tokens.element_size()
        _spread[(count, triton.cdiv(width, columns))](tokens.contiguous(), chosen, result, width, chosen.shape[1], columns)
    return result


def _bytes(routing_map: Tensor) -> Tensor:
    return routing_map.contiguous().view(torch.int8)


def _map_tile(tokens: int, experts: int) -> tuple[int, int, int]:
    """Its rows and columns, and how many there are."""
    columns = triton.next_power_of_2(experts)
    height = max(1, MAP_TILE // columns)
    return height, columns, triton.cdiv(tokens, height)


def _tile(width: int) -> tuple[int, int]:
    """Rows and columns. Tiles that end with the row leave no thread without numbers."""
    columns = min(MOST_COLUMNS, max(LEAST_COLUMNS, triton.next_power_of_2(width)))
    while columns > LEAST_COLUMNS and width % columns:
        columns //= 2
    return TILE // columns, columns


@triton.jit
def _chosen(routing_map, row, column, tokens, experts):  # type: ignore[no-untyped-def]
    inside = (row < tokens)[:, None] & (column < experts)[None, :]
    return tl.load(routing_map + row[:, None].to(tl.int64) * experts + column[None, :], mask=inside, other=0).to(tl.int32)


@triton.jit
def _count(routing_map, counts, tokens, experts, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    chosen = _chosen(routing_map, program * ROWS + tl.arange(0, ROWS), column, tokens, experts)
    tl.store(counts + column * tl.num_programs(0) + program, tl.sum(chosen, axis=0), mask=column < experts)


@triton.jit
def _order(  # type: ignore[no-untyped-def]
    routing_map, before, token, expert, rows, tokens, experts, most,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row, column = program * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    chosen = _chosen(routing_map, row, column, tokens, experts)
    first = tl.load(before + column * tl.num_programs(0) + program, mask=column < experts, other=0)
    place = first[None, :] + tl.cumsum(chosen, axis=0) - 1
    is_row = chosen > 0
    tl.store(token + place, tl.broadcast_to(row[:, None].to(tl.int64), [ROWS, COLUMNS]), mask=is_row)
    tl.store(expert + place, tl.broadcast_to(column[None, :].to(tl.int64), [ROWS, COLUMNS]), mask=is_row)
    line = rows + row[:, None].to(tl.int64) * most
    tl.store(line + tl.cumsum(chosen, axis=1) - 1, place, mask=is_row)
    number = tl.arange(0, WIDTH)[None, :]
    is_none = (number >= tl.sum(chosen, axis=1)[:, None]) & (number < most) & (row < tokens)[:, None]
    tl.store(line + number, tl.full([ROWS, WIDTH], -1, tl.int32), mask=is_none)


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
    # Sum over the row's threads once, because a sum per tile would make every thread wait.
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
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
        total += slope * values
        slope *= probability
        tl.store(result + at, slope * of_gate, mask=inside)
        tl.store(result + at + width, slope * of_up, mask=inside)
        tl.store(output + place, values * probability, mask=inside)
    tl.store(of_probabilities + row, tl.sum(total, axis=1), mask=row < rows)


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


@triton.jit
def _spread(tokens, chosen, result, width, each, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    line = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    values = tl.load(tokens + line * width + column, mask=inside)
    for number in range(each):
        row = tl.load(chosen + line * each + number).to(tl.int64)
        tl.store(result + row * width + column, values, mask=inside & (row >= 0))
