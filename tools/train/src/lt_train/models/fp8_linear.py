"""Linear layers in fp8 by torch alone; TransformerEngine's layers have their own.

All GEMMs of the decoder's linear layers are in fp8, forward and backward, with a scale for each tensor (recipe tensorwise), for
each row (rowwise, more exact and slower) or for each block (blockwise, DeepSeek's: 1 x 128 of activations and gradients, 128 x
128 of weights; Hopper only). Weights, gradients and optimizer stay as they are without fp8. Scaling is current, not delayed:
there is no amax history, and a checkpoint is the same as one of bf16. Embedding and output layer stay in 16 bits, and with
blocks those projections of latent attention whose widths are no multiples of 128. Experts have products of their own.

A weight's gradient needs the transpose of the layer's input. Attention's output is saved for the backward pass in any case: it is
cast again then, and its fp8 transpose not saved. So is SwiGLU's output, if that is to be recomputed: of Llama 3 8B's width and
32,768 tokens 0.13 and 0.47 GB a layer less, and 0.06 and 0.6 ms more.

On an H200 an fp8 GEMM takes half the time of one in bf16; the casts take part of that back. With sequence parallelism, where
`ops.peer_exchange` overlaps collectives with GEMMs, rows are cast before they are gathered, with a scale that the ranks agree
on: half as many bytes are sent. Of a layer's input only the rank's own rows are saved then. Otherwise rows are gathered in 16
bits, and the input gradient's collective does not overlap with the weight gradient's GEMM, as in megatron-core's bf16 layers.
"""

from collections.abc import Callable
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
from megatron.core.transformer.moe.experts import SequentialMLP
from torch import Tensor

from lt_train.config.kernels import PEER_MEMORY, Kernels
from lt_train.config.settings.layers import TRITON
from lt_train.config.settings.precision import Precision
from lt_train.kernels import FP8_BLOCK
from lt_train.ops import fp8_casts
from lt_train.ops.deferred_gradients import later
from lt_train.ops.fp8_casts import Casts, SwigluCasts, TritonCasts
from lt_train.ops.fp8_gemm import Cast
from lt_train.ops.row_exchange import Exchange
from lt_train.ops.wgrad_accumulation import add, overwrites, written

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2


class Source(Protocol):
    """Where a linear layer's input comes from, which decides what of it is saved for the backward pass."""

    @staticmethod
    def cast(rows: Tensor, casts: Any) -> tuple[Cast, tuple[Tensor, Tensor | None]]:
        """The input in fp8, and what is saved."""
        ...

    @staticmethod
    def transposed(gradient: Tensor, first: Tensor, second: Any, casts: Any) -> tuple[Tensor, Cast]:
        """The gradient of what `cast` got, from that of the input, and the input's transpose in fp8, from what was saved."""
        ...


def use_fp8(model: GPTModel, precision: Precision, kernels: Kernels, exchange: Exchange) -> None:
    """Make the linear layers of `model`'s decoder multiply in fp8."""
    gradient = E5M2 if precision.fp8_format == "hybrid" else E4M3
    by_triton = kernels.fp8_cast == TRITON
    casts = fp8_casts.choose(precision.fp8_recipe, by_triton)
    multiple = FP8_BLOCK if precision.fp8_recipe == "blockwise" else 1
    linear = partial(_linear, source=TransposeSaved, gradient=gradient, casts=casts)
    experts = {module for each in model.decoder.modules() if isinstance(each, SequentialMLP) for module in each.modules()}
    for module in model.decoder.modules():
        is_linear = isinstance(module, ColumnParallelLinear | RowParallelLinear) and module not in experts
        if is_linear and not any(size % multiple for size in module.weight.shape):
            module._forward_impl = linear
    if by_triton:
        for module in model.decoder.modules():
            if isinstance(module, SelfAttention) and not module.checkpoint_core_attention:
                module.linear_proj._forward_impl = partial(linear, source=InputSaved)
            elif type(module) is MLP and module not in experts and kernels.recomputes_swiglu:
                module.linear_fc2._forward_impl = partial(linear, source=GateUpSaved)
                module.forward = partial(_gated_mlp, module)
        if kernels.collectives == PEER_MEMORY and isinstance(casts, TritonCasts):
            _exchange_rows(model, exchange, linear)


def _exchange_rows(model: GPTModel, exchange: Exchange, linear: Any) -> None:
    """Of the linear layers that gather or scatter the rows of sequence parallelism; `linear` is what they would compute else."""
    settings = {"gradient": linear.keywords["gradient"], "casts": linear.keywords["casts"], "exchange": exchange}
    for module in model.decoder.modules():
        if type(module) is ColumnParallelLinear and module.sequence_parallel and not module.is_expert:
            module._forward_impl = partial(_column_parallel, **settings)
        elif type(module) is RowParallelLinear and module.sequence_parallel and not module.is_expert:
            module.forward = partial(_row_parallel, module, source=module._forward_impl.keywords["source"], **settings)


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
    there by the GEMM: fp8 GEMMs cannot accumulate into their output.
    """
    if sequence_parallel:
        input = gather_from_sequence_parallel_region(input, tensor_parallel_output_grad=True, group=tp_group)
    elif allreduce_dgrad:
        input = copy_to_tensor_model_parallel_region(input, group=tp_group)
    rows = input.reshape(-1, input.shape[-1])
    buffer = getattr(weight, "main_grad", None) if gradient_accumulation_fusion else None
    output: Tensor = _Fp8Linear.apply(rows, weight, buffer, source, gradient, casts)  # type: ignore[no-untyped-call]
    output = output.view(*input.shape[:-1], weight.shape[0])
    return output if bias is None else output + bias


def _column_parallel(
    *, input: Tensor, weight: Tensor, bias: Tensor | None, gradient_accumulation_fusion: bool,
    gradient: torch.dtype, casts: TritonCasts, exchange: Exchange, **unused: Any,
) -> Tensor:  # fmt: skip
    """As `_linear`, of this rank's rows `input`, and for all ranks' rows."""
    rows = input.reshape(-1, input.shape[-1]).contiguous()
    buffer = getattr(weight, "main_grad", None) if gradient_accumulation_fusion else None
    output: Tensor = _ColumnParallel.apply(rows, weight, buffer, gradient, casts, exchange)  # type: ignore[no-untyped-call]
    output = output.view(-1, *input.shape[1:-1], len(weight))
    return output if bias is None else output + bias


def _row_parallel(
    layer: Any, input_: Tensor, *, source: type[Source], gradient: torch.dtype, casts: TritonCasts, exchange: Exchange
) -> tuple[Tensor, Tensor | None]:
    """What megatron-core's row-parallel layer returns for `input_` [s, b, k]: this rank's share of the sum, and the bias."""
    buffer = getattr(layer.weight, "main_grad", None) if layer.gradient_accumulation_fusion else None
    rows = input_.reshape(-1, input_.shape[-1])
    output: Tensor = _RowParallel.apply(  # type: ignore[no-untyped-call]
        rows, layer.weight, buffer, source, gradient, casts, exchange
    )
    output = output.view(-1, *input_.shape[1:-1], len(layer.weight))
    if layer.skip_bias_add or layer.bias is None:
        return output, layer.bias
    return output + layer.bias, None


class _Fp8Linear(torch.autograd.Function):
    """Rows [m, k] times the transpose of `weight` [n, k], as `source` casts the rows. fp8 GEMMs need the contracted
    dimension of both operands innermost."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, buffer: Tensor | None, source: type[Source], gradient: torch.dtype, casts: Casts
    ) -> Tensor:
        cast, kept = source.cast(rows, casts)
        amax = casts.amax(weight)
        ctx.buffer, ctx.source, ctx.gradient, ctx.casts = buffer, source, gradient, casts
        # The weight is cast again in the backward pass: saving it in fp8 would need half as much memory again.
        ctx.save_for_backward(weight, amax, *kept)
        return casts.multiply(cast, casts.cast_weight(weight, amax, E4M3), rows.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        weight, amax, *kept = ctx.saved_tensors
        casts, dtype = ctx.casts, output_gradient.dtype
        cast, scale, transpose, transpose_scale = casts.cast_and_transpose(output_gradient.contiguous(), ctx.gradient)
        gradient = casts.multiply((cast, scale), casts.cast_weight_transpose(weight, amax, E4M3), dtype, fast=False)
        rows_gradient, rows_transpose = ctx.source.transposed(gradient, *kept, casts)
        weight_gradient = _weight_gradient(casts, (transpose, transpose_scale), rows_transpose, weight, ctx.buffer, dtype)
        return rows_gradient, weight_gradient, None, None, None, None


def _weight_gradient(
    casts: Casts, gradient: Cast, rows: Cast, weight: Tensor, buffer: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """From the transposes of the output's gradient and of the rows; in `buffer`, if there is one, or will be."""
    multiply = partial(casts.multiply, gradient, rows, fast=False)
    if buffer is None:
        return multiply(dtype)
    # Not all GEMMs with scales have float32 outputs.
    is_direct = buffer.dtype == dtype or casts.writes_float32
    later(buffer, partial(_accumulate, multiply, dtype, buffer, is_direct))
    return written(weight)


class _ColumnParallel(torch.autograd.Function):
    """This rank's columns of all ranks' rows."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        buffer: Tensor | None,
        gradient: torch.dtype,
        casts: TritonCasts,
        exchange: Exchange,
    ) -> Tensor:
        cast, scale = casts.cast(rows, casts.amax_of_ranks(rows, exchange), E4M3)
        gathered = exchange.gather(cast.view(torch.uint8), whole=False)
        amax = casts.amax(weight)
        weight_cast = casts.cast(weight, amax, E4M3)
        output = rows.new_empty(gathered.count, len(weight))
        for place, part in gathered.parts():
            casts.multiply((part.view(E4M3), scale), weight_cast, rows.dtype, fast=True, out=output[place])
        ctx.buffer, ctx.gradient, ctx.casts, ctx.exchange = buffer, gradient, casts, exchange
        ctx.save_for_backward(weight, amax, cast, scale)
        return output

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        weight, amax, cast, scale = ctx.saved_tensors
        casts, dtype = ctx.casts, output_gradient.dtype
        gathered = ctx.exchange.gather(cast.view(torch.uint8), whole=True)
        gradient, factor, transpose, _ = casts.cast_and_transpose(output_gradient.contiguous(), ctx.gradient)
        weight_transpose = casts.cast_transpose(weight, amax, E4M3)

        def rows_gradient(place: slice, out: Tensor) -> None:
            casts.multiply((gradient[place], factor), weight_transpose, dtype, fast=False, out=out)

        finish = ctx.exchange.start_sum(len(gradient), weight.shape[1], output_gradient, rows_gradient)
        rows_transpose = casts.transposed(gathered.whole().view(E4M3))
        weight_gradient = _weight_gradient(casts, (transpose, factor), (rows_transpose, scale), weight, ctx.buffer, dtype)
        return finish(), weight_gradient, None, None, None, None


class _RowParallel(torch.autograd.Function):
    """This rank's share of the rows, summed over the ranks; `source` casts what this rank multiplies."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, buffer: Tensor | None,
        source: type[Source], gradient: torch.dtype, casts: TritonCasts, exchange: Exchange,
    ) -> Tensor:  # fmt: skip
        (cast, scale), kept = source.cast(rows, casts)
        amax = casts.amax(weight)
        weight_cast = casts.cast(weight, amax, E4M3)
        ctx.buffer, ctx.source, ctx.gradient, ctx.casts, ctx.exchange = buffer, source, gradient, casts, exchange
        ctx.save_for_backward(weight, amax, *kept)

        def product(place: slice, out: Tensor) -> None:
            casts.multiply((cast[place], scale), weight_cast, rows.dtype, fast=True, out=out)

        return exchange.sum(len(cast), len(weight), rows, product)

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None, None, None]:
        weight, amax, *kept = ctx.saved_tensors
        casts, dtype = ctx.casts, output_gradient.dtype
        output_gradient = output_gradient.contiguous()
        cast, factor = casts.cast(output_gradient, casts.amax_of_ranks(output_gradient, ctx.exchange), ctx.gradient)
        gathered = ctx.exchange.gather(cast.view(torch.uint8), whole=True)
        weight_transpose = casts.cast_transpose(weight, amax, E4M3)
        gradient = output_gradient.new_empty(gathered.count, weight.shape[1])
        for place, part in gathered.parts():
            casts.multiply((part.view(ctx.gradient), factor), weight_transpose, dtype, fast=False, out=gradient[place])
        transpose = casts.transposed(gathered.whole().view(ctx.gradient))
        rows_gradient, rows_transpose = ctx.source.transposed(gradient, *kept, casts)
        weight_gradient = _weight_gradient(casts, (transpose, factor), rows_transpose, weight, ctx.buffer, dtype)
        return rows_gradient, weight_gradient, None, None, None, None, None


def _accumulate(multiply: Callable[..., Tensor], dtype: torch.dtype, buffer: Tensor, is_direct: bool) -> None:
    """Write or add the product of `multiply` to `buffer`; `is_direct` when a GEMM can write it."""
    if is_direct and overwrites(buffer):
        multiply(buffer.dtype, out=buffer)
    else:
        add(multiply(dtype), buffer)


class TransposeSaved:
    """Saves the fp8 transpose: nothing else saves this input."""

    @staticmethod
    def cast(rows: Tensor, casts: Casts) -> tuple[Cast, tuple[Tensor, Tensor]]:
        cast, scale, transpose, transpose_scale = casts.cast_and_transpose(rows, E4M3)
        return (cast, scale), (transpose, transpose_scale)

    @staticmethod
    def transposed(gradient: Tensor, transpose: Tensor, scale: Tensor, casts: Casts) -> tuple[Tensor, Cast]:
        return gradient, (transpose, scale)


class InputSaved:
    """Saves the input, which the operation before it saves as well."""

    @staticmethod
    def cast(rows: Tensor, casts: Casts) -> tuple[Cast, tuple[Tensor, Tensor | None]]:
        amax = casts.amax(rows)
        return casts.cast(rows, amax, E4M3), (rows, amax)

    @staticmethod
    def transposed(gradient: Tensor, rows: Tensor, amax: Tensor | None, casts: Casts) -> tuple[Tensor, Cast]:
        return gradient, casts.cast_transpose(rows, amax, E4M3)


class GateUpSaved:
    """SwiGLU of rows [m, 2 k], gates first, which are saved; its output is recomputed."""

    @staticmethod
    def cast(gate_up: Tensor, casts: SwigluCasts) -> tuple[Cast, tuple[Tensor, Tensor | None]]:
        cast, amax = casts.cast_swiglu(gate_up, E4M3)
        return cast, (gate_up, amax)

    @staticmethod
    def transposed(gradient: Tensor, gate_up: Tensor, amax: Tensor | None, casts: SwigluCasts) -> tuple[Tensor, Cast]:
        gate_up_gradient, transpose, scale = casts.swiglu_gradient(gradient, gate_up, amax, E4M3)
        return gate_up_gradient, (transpose, scale)
