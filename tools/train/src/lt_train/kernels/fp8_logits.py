"""Cast the gradient of logits to fp8, with its transpose, in a single reading of the logits.

The gradient of a token's logits is softmax minus one at the label. Its largest magnitude is 1 - p, p being the label's
probability, because the other probabilities sum to 1 - p. So a scale per token that maps 1 - p to a power of two makes the
label's number exact, and e5m2 holds the other tokens' probabilities down to 2^-31 (1 - p), with at least two bits of precision
down to 2^-29. The gradient of a rare token is not rounded to zero.

The caller multiplies by (1 - p) and by the loss's gradient where a row has h numbers instead of a vocabulary.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 128
# The magnitude of the label's number. The largest of e5m2 is 1.75 times as large.
LABEL = 2.0**15
# The smallest 1 - p. Rounding errors of a normalizer near 20 are of this size, so smaller values would be noise.
SMALLEST_SHARE = 2.0**-20


def other_shares(losses: Tensor) -> Tensor:
    """Return 1 - p for every token, p being the label's probability, from the losses in nats, float32 [m]."""
    return (-torch.expm1(-losses)).clamp_(min=SMALLEST_SHARE)


def cast_gradient(
    logits: Tensor, labels: Tensor, normalizers: Tensor, shares: Tensor, columns: int, result: Tensor, transpose: Tensor
) -> None:
    """Write the gradient of contiguous `logits` [m, n] to `result` [m, n], and its transpose to `transpose` [n, m], in e5m2.

    A row is multiplied by `LABEL` and divided by its share of `other_shares`. `normalizers` are log(sum(exp)), float32 [m].
    Columns from `columns` on are padding and become zeros. `labels` are as in `cross_entropy.row_terms`. `transpose` may be a
    part of a wider tensor.
    """
    rows, width = logits.shape
    shifts = normalizers + (shares.log() - math.log(LABEL))
    _cast_gradient[(triton.cdiv(rows, TILE), triton.cdiv(width, TILE))](
        logits, labels, shifts, result, transpose, rows, width, columns, transpose.stride(0),
        LABEL, torch.finfo(result.dtype).max, TILE, num_warps=8,
    )  # fmt: skip


@triton.jit
def _cast_gradient(  # type: ignore[no-untyped-def]
    logits, labels, shifts, result, transpose, rows, width, columns, stride,
    LABEL: tl.constexpr, LARGEST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    first_row, first_column = tl.program_id(0).to(tl.int64) * TILE, tl.program_id(1).to(tl.int64) * TILE
    row, column = first_row + tl.arange(0, TILE), first_column + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    values = tl.load(logits + row[:, None] * width + column[None, :], mask=inside, other=0.0).to(tl.float32)
    numbers = tl.exp(values - tl.load(shifts + row, mask=row < rows, other=0.0)[:, None])
    # ALL keeps a NaN, which must reach the gradient's norm.
    numbers = tl.minimum(numbers, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    label = tl.load(labels + row, mask=row < rows, other=-1)
    numbers = tl.where(column[None, :] == label[:, None], -LABEL, numbers)
    numbers = tl.where(column[None, :] < columns, numbers, 0.0).to(result.dtype.element_ty)
    tl.store(result + row[:, None] * width + column[None, :], numbers, mask=inside)
    tl.store(transpose + column[:, None] * stride + row[None, :], tl.trans(numbers), mask=tl.trans(inside))
