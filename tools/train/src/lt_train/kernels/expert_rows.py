"""Row operations between the grouped GEMMs of experts. A token has one row for each of its experts.

The operations are: sort rows by expert, spread tokens to rows, multiply SwiGLU by the router's probability, and sum a token's
rows. torch's operations (`lt_train.ops.expert_rows`) need some 20 kernels per layer, this module five.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lt_shared.models.architecture import CLAMPED_SWIGLU_ALPHA, CLAMPED_SWIGLU_LIMIT

# Elements of an activation tile, and the limits of its width. A program of the sum takes SUMMED_COLUMNS columns.
TILE, LEAST_COLUMNS, MOST_COLUMNS, SUMMED_COLUMNS = 2048, 64, 1024, 1024
# Bytes of a token that a program of `spread_rows` copies.
SPREAD_BYTES = 2048
# Elements of a tile of the routing map: as many tokens as fit, with all experts.
MAP_TILE = 2048
ALPHA, LIMIT = tl.constexpr(CLAMPED_SWIGLU_ALPHA), tl.constexpr(CLAMPED_SWIGLU_LIMIT)


def count_rows(routing_map: Tensor) -> tuple[Tensor, Tensor]:
    """Count the rows of `routing_map` [t, n], bool, by expert and block of tokens.

    Returns the borders of the experts' blocks of rows, int32 [n + 1], and for `order_rows` the number of rows before each block
    of tokens, by expert and then by block, with the total last: int32 [n x blocks + 1].

    A program counts how many tokens of its block each expert gets. The cumulative sum over experts and then blocks is the index
    at which a block's rows begin, and `order_rows` counts again within the block. The result is exact and deterministic, and the
    host waits for nothing.
    """
    tokens, experts = routing_map.shape
    height, columns, programs = _map_tile(tokens, experts)
    counts = torch.empty(experts * programs, dtype=torch.int32, device=routing_map.device)
    rows_before = torch.zeros(experts * programs + 1, dtype=torch.int32, device=routing_map.device)
    if tokens:
        _count[(programs,)](_bytes(routing_map), counts, tokens, experts, height, columns)
        torch.cumsum(counts, 0, dtype=torch.int32, out=rows_before[1:])
        return rows_before[::programs].contiguous(), rows_before
    return rows_before.new_zeros(experts + 1), rows_before


def order_rows(routing_map: Tensor, experts_per_token: int, rows_before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the token and the expert of every row, int64 [t x k], and every token's rows, int32 [t, k], in the order of experts.

    Rows are sorted by expert, and by token within an expert. A token in `routing_map` [t, n], bool, has up to k =
    `experts_per_token` experts. If a token has fewer, the last entries of the first two results are not set, and -1 fills the
    token's missing rows. `rows_before` is the second result of `count_rows`.
    """
    tokens, experts = routing_map.shape
    height, columns, programs = _map_tile(tokens, experts)
    token, expert = torch.empty(2, tokens * experts_per_token, dtype=torch.int64, device=routing_map.device)
    rows = torch.empty(tokens, experts_per_token, dtype=torch.int32, device=routing_map.device)
    if tokens:
        width = triton.next_power_of_2(experts_per_token)
        _order[(programs,)](
            _bytes(routing_map), rows_before, token, expert, rows, tokens, experts, experts_per_token, height, columns, width
        )
    return token, expert, rows


def weighted_swiglu(gate_up: Tensor, probabilities: Tensor, bias: Tensor | None, group_of_row: Tensor | None) -> Tensor:
    """Multiply SwiGLU of `gate_up` [m, 2 n], gates first, by the row's probability, float32 [m]. Returns [m, n].

    With `bias` [groups, 2 n], the bias of a row's group is added to gate and up, and SwiGLU is clamped as in gpt-oss.
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
    """Return the gradients of `gate_up` and `probabilities` from the output's `gradient` [m, n], and the recomputed output.

    Forward, SwiGLU reads 2 numbers, gate and up, and writes 1, their weighted product. Backward it reads 3 and writes 3: two
    gradients, and the weighted output again for the second matrix's gradient, so that the forward pass need not keep it. The
    probability's gradient is a sum over the same numbers.
    """
    rows, width = gradient.shape
    result, output = torch.empty_like(gate_up), torch.empty_like(gradient)
    probabilities_gradient = torch.empty_like(probabilities)
    if rows:
        height, columns = _tile(width)
        _backward[(triton.cdiv(rows, height),)](
            gradient,
            gate_up,
            probabilities,
            bias,
            group_of_row,
            result,
            output,
            probabilities_gradient,
            rows,
            width,
            height,
            columns,
        )
    return result, probabilities_gradient, output


def sum_rows(rows: Tensor, chosen: Tensor) -> Tensor:
    """For every line of `chosen` [t, k], int32, sum the selected rows of `rows` [m, n] in float32. Returns [t, n], `rows.dtype`.

    A negative number in `chosen` selects no row.
    """
    count, rows_per_token = chosen.shape
    width = rows.shape[1]
    result = rows.new_empty(count, width)
    if count:
        _sum[(count, triton.cdiv(width, SUMMED_COLUMNS))](rows, chosen, result, width, rows_per_token, SUMMED_COLUMNS)
    return result


def spread_rows(tokens: Tensor, chosen: Tensor, token_of_row: Tensor) -> Tensor:
    """Copy token i of `tokens` [t, n] to every row [m, n] that line i of `chosen` [t, k], int32, names.

    A negative number names no row. `token_of_row` [m] is the inverse map: the token of every row. A program reads a token once
    and writes its rows. If programs gathered rows, a token would be read once per expert, because rows are sorted by expert and a
    token does not stay in the cache from one expert to the next.
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
    """Return the rows and columns of a tile of the routing map, and the number of tiles."""
    columns = triton.next_power_of_2(experts)
    height = max(1, MAP_TILE // columns)
    return height, columns, triton.cdiv(tokens, height)


def _tile(width: int) -> tuple[int, int]:
    """Return the rows and columns of an activation tile. If the tile's width divides the row, no thread is without numbers."""
    columns = min(MOST_COLUMNS, max(LEAST_COLUMNS, triton.next_power_of_2(width)))
    while columns > LEAST_COLUMNS and width % columns:
        columns //= 2
    return TILE // columns, columns


@triton.jit
def _load_map(routing_map, row, column, tokens, experts):  # type: ignore[no-untyped-def]
    inside = (row < tokens)[:, None] & (column < experts)[None, :]
    return tl.load(routing_map + row[:, None].to(tl.int64) * experts + column[None, :], mask=inside, other=0).to(tl.int32)


@triton.jit
def _count(routing_map, counts, tokens, experts, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    chosen = _load_map(routing_map, program * ROWS + tl.arange(0, ROWS), column, tokens, experts)
    tl.store(counts + column * tl.num_programs(0) + program, tl.sum(chosen, axis=0), mask=column < experts)


@triton.jit
def _order(  # type: ignore[no-untyped-def]
    routing_map, rows_before, token, expert, rows, tokens, experts, experts_per_token,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row, column = program * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    chosen = _load_map(routing_map, row, column, tokens, experts)
    first = tl.load(rows_before + column * tl.num_programs(0) + program, mask=column < experts, other=0)
    place = first[None, :] + tl.cumsum(chosen, axis=0) - 1
    is_row = chosen > 0
    tl.store(token + place, tl.broadcast_to(row[:, None].to(tl.int64), [ROWS, COLUMNS]), mask=is_row)
    tl.store(expert + place, tl.broadcast_to(column[None, :].to(tl.int64), [ROWS, COLUMNS]), mask=is_row)
    line = rows + row[:, None].to(tl.int64) * experts_per_token
    tl.store(line + tl.cumsum(chosen, axis=1) - 1, place, mask=is_row)
    number = tl.arange(0, WIDTH)[None, :]
    is_none = (number >= tl.sum(chosen, axis=1)[:, None]) & (number < experts_per_token) & (row < tokens)[:, None]
    tl.store(line + number, tl.full([ROWS, WIDTH], -1, tl.int32), mask=is_none)


@triton.jit
def _operands(gate_up, bias, group_of_row, row, column, inside, width):  # type: ignore[no-untyped-def]
    offsets = row[:, None].to(tl.int64) * 2 * width + column[None, :]
    gate = tl.load(gate_up + offsets, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + offsets + width, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        group = tl.load(group_of_row + row, mask=tl.max(inside.to(tl.int32), axis=1) > 0, other=0)
        bias_offsets = group[:, None].to(tl.int64) * 2 * width + column[None, :]
        gate += tl.load(bias + bias_offsets, mask=inside, other=0.0).to(tl.float32)
        up += tl.load(bias + bias_offsets + width, mask=inside, other=0.0).to(tl.float32)
    return gate, up, offsets


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
    gradient, gate_up, probabilities, bias, group_of_row, result, output, probabilities_gradient, rows, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    probability = tl.load(probabilities + row, mask=row < rows, other=0.0)[:, None]
    # Sum over the row's threads once, because a sum per tile would make every thread wait.
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for first in range(0, width, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        gate, up, offsets = _operands(gate_up, bias, group_of_row, row, column, inside, width)
        place = row[:, None].to(tl.int64) * width + column[None, :]
        slope = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
        if bias is None:
            share = tl.sigmoid(gate)
            values = gate * share * up
            gate_gradient = up * share * (1 + gate * (1 - share))
            up_gradient = gate * share
        else:
            is_gate, is_up = gate <= LIMIT, (up >= -LIMIT) & (up <= LIMIT)
            gate, up = tl.minimum(gate, LIMIT), tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
            share = tl.sigmoid(gate * ALPHA)
            values = gate * share * (up + 1)
            gate_gradient = tl.where(is_gate, (up + 1) * share * (1 + gate * ALPHA * (1 - share)), 0.0)
            up_gradient = tl.where(is_up, gate * share, 0.0)
        total += slope * values
        slope *= probability
        tl.store(result + offsets, slope * gate_gradient, mask=inside)
        tl.store(result + offsets + width, slope * up_gradient, mask=inside)
        tl.store(output + place, values * probability, mask=inside)
    tl.store(probabilities_gradient + row, tl.sum(total, axis=1), mask=row < rows)


@triton.jit
def _sum(rows, chosen, result, width, rows_per_token, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    line = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    total = tl.zeros([COLUMNS], dtype=tl.float32)
    for number in range(rows_per_token):
        row = tl.load(chosen + line * rows_per_token + number).to(tl.int64)
        is_there = column < tl.where(row >= 0, width, 0)
        total += tl.load(rows + row * width + column, mask=is_there, other=0.0).to(tl.float32)
    tl.store(result + line * width + column, total, mask=inside)


@triton.jit
def _spread(tokens, chosen, result, width, rows_per_token, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    line = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    values = tl.load(tokens + line * width + column, mask=inside)
    for number in range(rows_per_token):
        row = tl.load(chosen + line * rows_per_token + number).to(tl.int64)
        # `inside & (row >= 0)` is an int32 in the interpreter of Triton 3.9, which its store refuses.
        tl.store(result + row * width + column, values, mask=column < tl.where(row >= 0, width, 0))
