"""Multiply fp8 matrices by cuBLASLt, through torch.

Both operands have the contracted dimension innermost, and the product is multiplied by their inverse scales: one per matrix, one
per row, or, on Hopper GPUs, one per 128 numbers of a row or per 128 x 128 block. torch tells the kinds apart by the shape and the
strides of the scales: [m, k / 128] with the first dimension innermost, and [n / 128, k / 128] with the last. cuBLASLt multiplies
an operand with 1 x 128 blocks by an operand with 1 x 128 or 128 x 128 blocks.
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
    def __call__(self, a: Cast, b: Cast, dtype: torch.dtype, fast: bool, out: Tensor | None = None) -> Tensor:
        """Multiply `a` [m, k] by the transpose of `b` [n, k] into `dtype`. `fast` accumulates in too few bits for gradients."""
        ...


def multiply(a: Cast, b: Cast, dtype: torch.dtype, fast: bool, out: Tensor | None = None) -> Tensor:
    return torch._scaled_mm(a[0], b[0].t(), scale_a=a[1], scale_b=b[1].t(), out_dtype=dtype, use_fast_accum=fast, out=out)


def multiply_blocks(a: Cast, b: Cast, dtype: torch.dtype, fast: bool, out: Tensor | None = None) -> Tensor:
    """Multiply operands with block scales. Sums are always accumulated in float32.

    torch has no such product on a CPU, so operands on a CPU are dequantized first.
    """
    if a[0].is_cuda:
        return multiply(a, b, dtype, False, out)
    product = dequantize(a) @ dequantize(b).t()
    return product.to(dtype) if out is None else out.copy_(product)


def dequantize(cast: Cast) -> Tensor:
    """Multiply the fp8 numbers of `cast` by their scales, for blocks of any size. Returns float32."""
    numbers, factors = cast
    for dimension in range(2):
        factors = factors.repeat_interleave(numbers.shape[dimension] // factors.shape[dimension], dimension)
    return numbers.float() * factors


def repeats_scales(width: int) -> bool:
    """Whether the block scales of a weight with `width` columns must be repeated for every row of a block.

    cuBLASLt reads scales of 128 x 128 blocks in padded lines, and torch does not pad them. Repeated scales need no padding.
    """
    return width // FP8_BLOCK % ALIGNED_BLOCKS > 0
