"""SwiGLU (Shazeer 2020): silu(gate) x up, where gate and up are the two halves of a row. One pass forward, one backward.

Forward moves 3 numbers for each of its outputs, backward 5: megatron-core's compiled pair moves 7 backward.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lt_train.kernels.largest import note, noted_with

BLOCK = 1024


class SwiGLU(torch.autograd.Function):
    """[..., 2 x width] to [..., width], of one dtype, computed in float32."""

    @staticmethod
    def forward(ctx: Any, halves: Tensor) -> Tensor:
        ctx.save_for_backward(halves)
        width = halves.shape[-1] // 2
        output = halves.new_empty(*halves.shape[:-1], width)
        _forward[_grid(output)](halves, output, noted_with(output), width, BLOCK)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (halves,) = ctx.saved_tensors
        gradient = gradient.contiguous()
        result = torch.empty_like(halves)
        _backward[_grid(gradient)](gradient, halves, result, noted_with(result), gradient.shape[-1], BLOCK)
        return result


def swiglu(halves: Tensor) -> Tensor:
    """`halves` [..., 2 x width] must be contiguous."""
    result: Tensor = SwiGLU.apply(halves)  # type: ignore[no-untyped-call]
    return result


def _grid(output: Tensor) -> tuple[int, int]:
    return output.numel() // output.shape[-1], triton.cdiv(output.shape[-1], BLOCK)


@triton.jit
def _forward(halves, output, parts, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(halves + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(halves + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    product = gate * tl.sigmoid(gate) * up
    tl.store(output + row * width + columns, product, mask=inside)
    if parts is not None:
        note(product, output.dtype.element_ty, parts)


@triton.jit
def _backward(gradient, halves, result, parts, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(halves + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(halves + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    output = tl.load(gradient + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    of_gate, of_up = output * up * share * (1 + gate * (1 - share)), output * gate * share
    tl.store(result + row * 2 * width + columns, of_gate, mask=inside)
    tl.store(result + row * 2 * width + width + columns, of_up, mask=inside)
    if parts is not None:
        note(tl.maximum(tl.abs(of_gate), tl.abs(of_up), propagate_nan=tl.PropagateNan.ALL), result.dtype.element_ty, parts)
