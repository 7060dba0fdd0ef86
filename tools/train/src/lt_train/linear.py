"""Linear layers of a rank that has whole weights: tuned products, and weight gradients added to their buffers.

With tensor parallelism megatron-core's own layers stay, which overlap their communication with the products.
"""

from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from torch import Tensor

from lt_train import products
from lt_train.weight_gradients import WeightGradients


def tune_products(model: GPTModel) -> None:
    """Let all linear layers of `model`, the output layer too, find the fastest products."""
    for module in model.modules():
        if isinstance(module, ColumnParallelLinear | RowParallelLinear):
            module._forward_impl = _linear


def _linear(*, input: Tensor, weight: Tensor, bias: Tensor | None, **unused: Any) -> Tensor:
    """What megatron-core's linear layers call: `input` [s, b, k] times `weight` [n, k], both 16 bits; returns [s, b, n]."""
    output: Tensor = _Linear.apply(input, weight)  # type: ignore[no-untyped-call]
    return output if bias is None else output + bias


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(input, weight)
        rows = input.reshape(-1, input.shape[-1])
        return products.forward(rows, weight).view(*input.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor, Tensor]:
        input, weight = ctx.saved_tensors
        gradient = output_gradient.reshape(-1, output_gradient.shape[-1])
        input_gradient = products.input_gradient(gradient, weight).view(input.shape)
        return input_gradient, add_weight_gradient(weight, input.reshape(-1, input.shape[-1]), gradient)


def add_weight_gradient(weight: Any, rows: Tensor, gradient: Tensor) -> Tensor:
    """Add the transpose of `gradient` [m, n] times `rows` [m, k] to the buffer of `weight`.

    Returns what autograd is to take for the gradient: megatron-core's hook, which it must call, then leaves the buffer alone. A
    weight with another use, as a tied embedding's, gets zeros to add to.
    """
    accumulate = WeightGradients.wgrad_gemm_accum_fp32
    if weight.main_grad.dtype == rows.dtype:
        accumulate = WeightGradients.wgrad_gemm_accum_fp16
    accumulate(rows, gradient, weight.main_grad)
    weight.grad_added_to_main_grad = True
    return torch.zeros_like(weight) if getattr(weight, "zero_out_wgrad", False) else torch.empty_like(weight)
