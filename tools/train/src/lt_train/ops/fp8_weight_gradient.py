"""Write or add the weight gradients of fp8 GEMMs to the gradient buffers."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from lt_train.ops.deferred_gradients import compute_or_defer
from lt_train.ops.fp8_casts import Casts
from lt_train.ops.fp8_gemm import Cast
from lt_train.ops.wgrad_accumulation import add_or_overwrite, mark_gradient_added, overwrites


def add_weight_gradient(
    casts: Casts, gradient: Cast, rows: Cast, weight: Tensor, buffer: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Compute the weight's gradient from the transposes of the output's gradient and of the rows.

    With a `buffer`, the gradient is added to it, now or later (`lt_train.ops.deferred_gradients`).
    """
    multiply = partial(casts.multiply, gradient, rows, fast=False)
    if buffer is None:
        return multiply(dtype)
    # Not all GEMMs with scales can write float32.
    is_direct = buffer.dtype == dtype or casts.writes_float32
    compute_or_defer(buffer, partial(_accumulate, multiply, dtype, buffer, is_direct))
    return mark_gradient_added(weight)


def _accumulate(multiply: Callable[..., Tensor], dtype: torch.dtype, buffer: Tensor, is_direct: bool) -> None:
    """Write or add the product of `multiply` to `buffer`. `is_direct`: the GEMM can write the buffer's dtype."""
    # fp8 GEMMs cannot accumulate into their output, so only a step's first product is written by its GEMM.
    if is_direct and overwrites(buffer):
        multiply(buffer.dtype, out=buffer)
    else:
        add_or_overwrite(multiply(dtype), buffer)
