"""Matrix products in fp8: through TransformerEngine's layers when they are used, else here, through torch alone.

Every linear layer of the decoder then multiplies numbers of 8 bits, forward and backward, with a scale for each tensor (recipe
tensorwise) or for each row (rowwise, more exact and slower). Weights, gradients and optimizer stay as they are without fp8: the
scales are found anew in every product, so there is no state, and a checkpoint is the same as one of bf16. Embedding and output
layer stay in 16 bits.

A weight's gradient needs the transpose of what entered its product. What attention gave is there in the backward pass in any
case; it is cast then, and not kept. So is what SwiGLU gave, if that is to be recomputed: of Llama 3 8B's width and 32,768 tokens
0.13 and 0.47 GB a layer less, and 0.06 and 0.6 ms more.

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
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.mlp import MLP
from torch import Tensor

from lt_train.config.kernels import Kernels
from lt_train.config.settings.layers import TRITON
from lt_train.config.settings.precision import Precision
from lt_train.ops.fp8_casts import Casts, TorchCasts, TritonCasts
from lt_train.ops.wgrad_accumulation import add, overwrites, written

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2
# A tensor in fp8 and the factors that undo its scaling.
Cast = tuple[Tensor, Tensor]


class Source(Protocol):
    """Where the rows of a product come from, which decides what is kept of them for the backward pass."""

    @staticmethod
    def cast(rows: Tensor, casts: Any) -> tuple[Cast, tuple[Tensor, Tensor | None]]:
        """The factor of the product, and what is kept."""
        ...

    @staticmethod
    def turned(gradient: Tensor, first: Tensor, second: Any, casts: Any) -> tuple[Tensor, Cast]:
        """The gradient of what `cast` got, from that of the factor, and the transpose of the factor, from what was kept."""
        ...


def use_fp8(model: GPTModel, precision: Precision, kernels: Kernels) -> None:
    """Make the linear layers of `model`'s decoder multiply in fp8."""
    gradient = E5M2 if precision.fp8_format == "hybrid" else E4M3
    rowwise = precision.fp8_recipe == "rowwise"
    casts = TritonCasts() if kernels.fp8_cast == TRITON else TorchCasts(rowwise)
    linear = partial(_linear, source=Unkept, gradient=gradient, casts=casts)
    for module in model.decoder.modules():
        if isinstance(module, ColumnParallelLinear | RowParallelLinear):
            module._forward_impl = linear
    if isinstance(casts, TritonCasts):
        for module in model.decoder.modules():
            if isinstance(module, SelfAttention) and not module.checkpoint_core_attention:
                module.linear_proj._forward_impl = partial(linear, source=Kept)
            elif type(module) is MLP and kernels.recomputes_swiglu:
                module.linear_fc2._forward_impl = partial(linear, source=Halves)
                module.forward = partial(_gated_mlp, module)


def _gated_mlp(mlp: Any, hidden_states: Tensor, *unused: Any, **options: Any) -> Any:
    return mlp.linear_fc2(mlp.linear_fc1(hidden_states)[0])


def _linear(
    *,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gradient_accumulation_fusion: bool,
    allreduce_dgrad: bool,
    sequence_parallel: bool,
    tp_group: torch.distributed.ProcessGroup | None,
    source: type[Source],
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
    product: Tensor = _Product.apply(rows, weight, buffer, source, gradient, casts)  # type: ignore[no-untyped-call]
    output = product.view(*input.shape[:-1], weight.shape[0])
    return output if bias is None else output + bias


class _Product(torch.autograd.Function):
    """Rows [m, k] times the transpose of `weight` [n, k], as `source` casts the rows that it gets. The hardware wants the summed
    dimension of both factors innermost."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, buffer: Tensor | None, source: type[Source], gradient: torch.dtype, casts: Casts
    ) -> Tensor:
        cast, kept = source.cast(rows, casts)
        largest = casts.largest(weight)
        ctx.buffer, ctx.source, ctx.gradient, ctx.casts = buffer, source, gradient, casts
        # The weight is cast again in the backward pass: kept in fp8 as well, it would need half as much memory again.
        ctx.save_for_backward(weight, largest, *kept)
        return _multiply(cast, casts.straight(weight, largest, E4M3), rows.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        weight, largest, *kept = ctx.saved_tensors
        cast, scale, turned, turned_scale = ctx.casts.both(output_gradient.contiguous(), ctx.gradient)
        dtype = output_gradient.dtype
        gradient = _multiply((cast, scale), ctx.casts.turned(weight, largest, E4M3), dtype, fast=False)
        rows_gradient, turned_rows = ctx.source.turned(gradient, *kept, ctx.casts)
        weight_gradient = partial(_multiply, (turned, turned_scale), turned_rows, fast=False)
        buffer = ctx.buffer
        if buffer is None:
            return rows_gradient, weight_gradient(dtype), None, None, None, None
        # Products with a scale for each row are of 16 bits only.
        if (buffer.dtype == dtype or turned_scale.numel() == 1) and overwrites(buffer):
            weight_gradient(buffer.dtype, out=buffer)
        else:
            add(weight_gradient(dtype), buffer)
        return rows_gradient, written(weight), None, None, None, None


class Unkept:
    """Rows that nobody keeps: their transpose is."""

    @staticmethod
    def cast(rows: Tensor, casts: Casts) -> tuple[Cast, tuple[Tensor, Tensor]]:
        cast, scale, turned, turned_scale = casts.both(rows, E4M3)
        return (cast, scale), (turned, turned_scale)

    @staticmethod
    def turned(gradient: Tensor, turned: Tensor, scale: Tensor, casts: Casts) -> tuple[Tensor, Cast]:
        return gradient, (turned, scale)


class Kept:
    """Rows that whoever made them keeps."""

    @staticmethod
    def cast(rows: Tensor, casts: Casts) -> tuple[Cast, tuple[Tensor, Tensor | None]]:
        largest = casts.largest(rows)
        return casts.straight(rows, largest, E4M3), (rows, largest)

    @staticmethod
    def turned(gradient: Tensor, rows: Tensor, largest: Tensor | None, casts: Casts) -> tuple[Tensor, Cast]:
        return gradient, casts.turned(rows, largest, E4M3)


class Halves:
    """SwiGLU of rows [m, 2 k], gates first, which are kept."""

    @staticmethod
    def cast(halves: Tensor, casts: TritonCasts) -> tuple[Cast, tuple[Tensor, Tensor]]:
        activation = casts.swiglu(halves)
        largest = casts.largest(activation)
        return casts.straight(activation, largest, E4M3), (halves, largest)

    @staticmethod
    def turned(gradient: Tensor, halves: Tensor, largest: Tensor, casts: TritonCasts) -> tuple[Tensor, Cast]:
        halves_gradient, turned, scale = casts.swiglu_gradient(gradient, halves, largest, E4M3)
        return halves_gradient, (turned, scale)


def _multiply(left: Cast, right: Cast, dtype: torch.dtype, fast: bool, out: Tensor | None = None) -> Tensor:
    """`left` [m, k] times the transpose of `right` [n, k], of `dtype`. `fast` sums in fewer bits, which gradients do not bear."""
    return torch._scaled_mm(
        left[0], right[0].t(), scale_a=left[1], scale_b=right[1].t(), out_dtype=dtype, use_fast_accum=fast, out=out
    )
