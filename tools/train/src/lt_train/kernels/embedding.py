"""The gradient of an embedding, added to those rows of a buffer that the batch's tokens name.

torch makes a gradient as large as the table, 1 GB for Llama 3 8B, most of it zeros, and adds that to the buffer: 4 GB to move.
Here it is a row for each different token of the batch, of which there are no more than tokens.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


def add_rows(gradient: Tensor, tokens: Tensor, buffer: Tensor) -> None:
    """Add row i of `gradient` [tokens, width] to row `tokens[i]` of `buffer` [rows, width], for every i of `tokens`, int64.

    The gradients of equal tokens are summed first, by torch's kernel.
    """
    ordered, order = tokens.sort()
    is_first = torch.ones_like(ordered)
    is_first[1:] = ordered[1:] != ordered[:-1]
    # The different tokens, numbered; there are as many places as if all were different.
    numbers = is_first.cumsum(0) - 1
    number_of_token = torch.empty_like(numbers).scatter_(0, order, numbers)
    named = torch.full_like(numbers, -1).scatter_(0, numbers, ordered)
    sums = torch.ops.aten.embedding_dense_backward(gradient, number_of_token, len(tokens), -1, False)
    width = buffer.shape[1]
    _add[(len(tokens), triton.cdiv(width, BLOCK))](sums, named, buffer, width, BLOCK)


@triton.jit
def _add(sums, named, buffer, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(named + number)
    if row >= 0:
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        added = tl.load(sums + number * width + column, mask=inside).to(tl.float32)
        before = tl.load(buffer + row * width + column, mask=inside).to(tl.float32)
        tl.store(buffer + row * width + column, before + added, mask=inside)
