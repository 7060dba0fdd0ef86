"""Add the gradient of an embedding to the rows of a buffer for the tokens of the batch.

torch allocates a gradient as large as the table, 1 GB for Llama 3 8B, mostly zeros, and adds it to the buffer: 4 GB to move.
This kernel sums the rows of equal tokens in float32 and adds the sum, so that every row is read once.
"""

import triton
import triton.language as tl
from torch import Tensor

# Per program: columns, and rows read at a time for a repeated token.
BLOCK, ROWS = 1024, 4


def add_rows(gradient: Tensor, tokens: Tensor, buffer: Tensor) -> None:
    """Add row i of `gradient` [tokens, width] to row `tokens[i]` of `buffer` [rows, width]. `tokens` is int64.

    The order is deterministic. Tokens from `rows` on are ignored.
    """
    gradient = gradient.contiguous()
    ordered, order = tokens.sort(stable=True)
    rows, width = buffer.shape
    _add[(len(tokens), triton.cdiv(width, BLOCK))](gradient, ordered, order, buffer, len(tokens), rows, width, ROWS, BLOCK)


@triton.jit
def _add(  # type: ignore[no-untyped-def]
    gradient, ordered, order, buffer, count, rows, width, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Sum the rows of a token. The program of the token's first row does this; the token's other programs return."""
    index = tl.program_id(0)
    token = tl.load(ordered + index)
    if (tl.load(ordered + index - 1, mask=index > 0, other=-1) != token) & (token < rows):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        total = tl.zeros([BLOCK], dtype=tl.float32)
        while tl.load(ordered + index, mask=index < count, other=-1) == token:
            for _ in tl.static_range(ROWS):
                is_equal = tl.load(ordered + index, mask=index < count, other=-1) == token
                row = tl.load(order + index, mask=is_equal, other=0)
                mask = column < tl.where(is_equal, width, 0)
                total += tl.load(gradient + row * width + column, mask=mask, other=0.0).to(tl.float32)
                index += 1
        target = buffer + token * width + column
        tl.store(target, tl.load(target, mask=inside).to(tl.float32) + total, mask=inside)
