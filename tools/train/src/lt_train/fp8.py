"""Matrix products in fp8: through TransformerEngine's layers when they are used, else here, through torch alone.

Every linear layer of the decoder then multiplies numbers of 8 bits, forward and backward, with a scale for each tensor (recipe
tensorwise) or for each row (rowwise, more exact and slower). Weights, gradients and optimizer stay as they are without fp8: the
scales are found anew in every product, so there is no state, and a checkpoint is the same as one of bf16. Embedding and output
layer stay in 16 bits.

On an H200 an fp8 product takes half the time of a bf16 product; the casts take part of that back. With tensor parallelism the
gradient's reduction does not overlap with the product of the weight's gradient, as it does in megatron-core's bf16 layers.
"""

from functools import partial
from typing import Any, Protocol

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from torch import Tensor

from lt_train.kernels import SMALLEST_AMAX
from lt_train.settings.precision import Precision
from lt_train.weight_gradients import add, overwrites, written

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2
# Every linear layer has three shapes to cast; torch would fall back to uncompiled code after eight of them.
COMPILED_SHAPES = 64


class Casts(Protocol):
    """Turns tensors of 16 bits into fp8 numbers and float32 factors that undo the scaling."""

    def largest(self, tensor: Tensor) -> Tensor | None:
        """What `straight` and `turned` both need to know of `tensor`."""
        ...

    def straight(self, tensor: Tensor, largest: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]: ...

    def turned(self, tensor: Tensor, largest: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Of the transpose."""
        ...

    def both(self, tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...


def use_fp8(model: GPTModel, precision: Precision, triton: bool) -> None:
    """Make the linear layers of `model`'s decoder multiply in fp8; with `triton`, its kernels cast whole tensors."""
    gradient = E5M2 if precision.fp8_format == "hybrid" else E4M3
    rowwise = precision.fp8_recipe == "rowwise"
    casts: Casts = TritonCasts() if triton and not rowwise else TorchCasts(rowwise)
    product = partial(_linear, gradient=gradient, casts=casts)
    for module in model.decoder.modules():
        if isinstance(module, ColumnParallelLinear | RowParallelLinear):
            module._forward_impl = product


def _linear(
    *,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gradient_accumulation_fusion: bool,
    allreduce_dgrad: bool,
    sequence_parallel: bool,
    tp_group: torch.distributed.ProcessGroup | None,
    gradient: torch.dtype,
    casts: Casts,
    **unused: Any,
) -> Tensor:
    """What megatron-core's linear layers call: `input` [s, b, k] times `weight` [n, k], both 16 bits; returns [s, b, n].

    With `gradient_accumulation_fusion` the weight's gradient goes straight into its buffer. Only the first of a step is written
    there by the product: products in fp8 cannot add.
    """
    if sequence_parallel:
        input = gather_from_sequence_parallel_region(input, tensor_parallel_output_grad=True, group=tp_group)
    elif allreduce_dgrad:
        input = copy_to_tensor_model_parallel_region(input, group=tp_group)
    rows = input.reshape(-1, input.shape[-1])
    buffer = getattr(weight, "main_grad", None) if gradient_accumulation_fusion else None
    product: Tensor = _Product.apply(rows, weight, buffer, gradient, casts)  # type: ignore[no-untyped-call]
    output = product.view(*input.shape[:-1], weight.shape[0])
    return output if bias is None else output + bias


class _Product(torch.autograd.Function):
    """`rows` [m, k] times the transpose of `weight` [n, k]. The hardware wants the summed dimension of both factors innermost."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, buffer: Tensor | None, gradient: torch.dtype, casts: Casts) -> Tensor:
        cast, scale, turned, turned_scale = casts.both(rows, E4M3)
        largest = casts.largest(weight)
        ctx.buffer, ctx.gradient, ctx.casts = buffer, gradient, casts
        # The weight is cast again in the backward pass: kept in fp8 as well, it would need half as much memory again.
        ctx.save_for_backward(weight, largest, turned, turned_scale)
        return _multiply(cast, scale, *casts.straight(weight, largest, E4M3), rows.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        weight, largest, turned_rows, turned_rows_scale = ctx.saved_tensors
        cast, scale, turned, turned_scale = ctx.casts.both(output_gradient.contiguous(), ctx.gradient)
        dtype = output_gradient.dtype
        turned_weight, weight_scale = ctx.casts.turned(weight, largest, E4M3)
        rows_gradient = _multiply(cast, scale, turned_weight, weight_scale, dtype, fast=False)
        weight_gradient = partial(_multiply, turned, turned_scale, turned_rows, turned_rows_scale, fast=False)
        buffer = ctx.buffer
        if buffer is None:
            return rows_gradient, weight_gradient(dtype), None, None, None
        # Products with a scale for each row are of 16 bits only.
        if (buffer.dtype == dtype or turned_scale.numel() == 1) and overwrites(buffer):
            weight_gradient(buffer.dtype, out=buffer)
        else:
            add(weight_gradient(dtype), buffer)
        return rows_gradient, written(weight), None, None, None


def _multiply(
    left: Tensor,
    left_scale: Tensor,
    right: Tensor,
    right_scale: Tensor,
    dtype: torch.dtype,
    fast: bool,
    out: Tensor | None = None,
) -> Tensor:
    """`left` [m, k] times the transpose of `right` [n, k], of `dtype`. `fast` sums in fewer bits, which gradients do not bear."""
    return torch._scaled_mm(
        left, right.t(), scale_a=left_scale, scale_b=right_scale.t(), out_dtype=dtype, use_fast_accum=fast, out=out
    )


class TritonCasts:
    """One scale a tensor, by the kernels of `lt_train.kernels.fp8`."""

    def __init__(self) -> None:
        from lt_train.kernels import fp8, largest

        self.cast, self.largest_of = fp8.cast, largest.of
        largest.want(True)

    def largest(self, tensor: Tensor) -> Tensor:
        return self.largest_of(tensor)

    def straight(self, tensor: Tensor, largest: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        cast, _, factor = self.cast(tensor, largest, dtype, True, False)
        return cast, factor

    def turned(self, tensor: Tensor, largest: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        _, turned, factor = self.cast(tensor, largest, dtype, False, True)
        return turned, factor

    def both(self, tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        cast, turned, factor = self.cast(tensor, None, dtype, True, True)
        return cast, factor, turned, factor


class TorchCasts:
    """A scale for each tensor or, `rowwise`, for each row, by compiled functions."""

    def __init__(self, rowwise: bool):
        self.rowwise = rowwise
        torch._dynamo.config.recompile_limit = COMPILED_SHAPES

    def largest(self, tensor: Tensor) -> None:
        """Compiled, each finds it with the same reading."""

    def straight(self, tensor: Tensor, largest: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return _straight(tensor, dtype, self.rowwise)

    def turned(self, tensor: Tensor, largest: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return _turned(tensor, dtype, self.rowwise)

    def both(self, tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return _both(tensor, dtype, self.rowwise)


def _scaled(tensor: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    """`tensor` in fp8, its largest value at the end of the range, and the float32 factor that undoes the scaling."""
    largest = torch.finfo(dtype).max
    size = tensor.abs()
    amax = (size.amax(dim=1, keepdim=True) if rowwise else size.amax()).float().clamp(min=SMALLEST_AMAX)
    return (tensor.float() * (largest / amax)).clamp(-largest, largest).to(dtype), amax / largest


@torch.compile(dynamic=False)
def _straight(tensor: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    return _scaled(tensor, dtype, rowwise)


@torch.compile(dynamic=False)
def _turned(tensor: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    cast, scale = _scaled(tensor.t(), dtype, rowwise)
    return cast.contiguous(), scale


@torch.compile(dynamic=False)
def _both(tensor: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`tensor` [a, b] and its transpose in fp8, one pass over the values for both, each with its scale."""
    cast, scale = _scaled(tensor, dtype, rowwise)
    turned, turned_scale = _scaled(tensor.t(), dtype, rowwise)
    return cast, scale, turned.contiguous(), turned_scale
