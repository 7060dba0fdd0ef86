"""Products of fp8 matrices by cuBLASLt, through torch.

Both operands have the contracted dimension innermost, and their inverse scales are applied to the product: one for a matrix, one
for each row, or, on Hopper GPUs, one for each 128 numbers of a row or for each 128 x 128 of a matrix. Which it is, torch sees by
the shape and the strides of the scales: [m, k / 128] with the first dimension innermost, and [n / 128, k / 128] with the last.
cuBLASLt multiplies blocks of 1 x 128 with such blocks or with those of 128 x 128.
"""

from typing import Protocol

import torch
from torch import Tensor

from lt_train.kernels import FP8_BLOCK

# A tensor in fp8 and its inverse scales.
Cast = tuple[Tensor, Tensor]
# cuBLASLt reads the scales of 128 x 128 blocks in lines padded to a multiple of this number.
ALIGNED_BLOCKS = 4


class Product(Protocol):
    def __call__(self, left: Cast, right: Cast, dtype: torch.dtype, fast: bool, out: Tensor | None = None) -> Tensor:
        """`left` [m, k] times the transpose of `right` [n, k], of `dtype`. `fast` accumulates in too few bits for gradients."""
        ...


def multiply(left: Cast, right: Cast, dtype: torch.dtype, fast: bool, out: Tensor | None = None) -> Tensor:
    return torch._scaled_mm(
        left[0], right[0].t(), scale_a=left[1], scale_b=right[1].t(), out_dtype=dtype, use_fast_accum=fast, out=out
    )


def multiply_blocks(left: Cast, right: Cast, dtype: torch.dtype, fast: bool, out: Tensor | None = None) -> Tensor:
    """With scales for blocks, whose sums are accumulated in float32 in any case. On a CPU, where torch has no such product, that
    of the numbers which the operands stand for."""
    if left[0].is_cuda:
        return multiply(left, right, dtype, False, out)
    product = dequantized(left) @ dequantized(right).t()
    return product.to(dtype) if out is None else out.copy_(product)


def dequantized(cast: Cast) -> Tensor:
    """The float32 numbers that `cast` stands for, whose scales are of blocks of any size."""
    numbers, factors = cast
    for dimension in range(2):
        factors = factors.repeat_interleave(numbers.shape[dimension] // factors.shape[dimension], dimension)
    return numbers.float() * factors


def repeats_scales(width: int) -> bool:
    """Whether a weight whose rows have `width` numbers needs a scale for each row of a block, since torch's product does not pad
    the lines of the others. They are the same numbers."""
    return width // FP8_BLOCK % ALIGNED_BLOCKS > 0
