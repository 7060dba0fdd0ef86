"""RMSNorm (Zhang and Sennrich 2019) of the residual stream, fused with the residual addition and the addition of its gradients.

A layer adds attention's output to the residual stream, normalizes the sum, and needs both the sum and its norm. Separate kernels
read and write a token's numbers 5 times forward and 6 times backward; these kernels 4 and 4 times.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lt_train.kernels.amax_reduction import allocate_parts, magnitude_bits, store_amax

# A program of the backward pass sums the weight's gradient over its rows; the programs' sums are added afterwards. There are two
# programs per multiprocessor of an H200. A program prefetches rows if the three tensors' rows fit into shared memory: 4.0 TB/s of
# 4.3.
PROGRAMS = 264
AHEAD, WIDEST_AHEAD_BYTES = 3, 16384


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stream: Tensor, addend: Tensor | None, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        width = stream.shape[-1]
        rows = stream.numel() // width
        normed = torch.empty_like(stream)
        total = stream.view_as(stream) if addend is None else torch.empty_like(stream)
        inverse = torch.empty(rows, dtype=torch.float32, device=stream.device)
        block = triton.next_power_of_2(width)
        second = stream if addend is None else addend
        adds = addend is not None
        parts = allocate_parts(normed)
        _forward[(rows,)](
            stream, second, weight, total, normed, parts, inverse, width, epsilon, adds, block, num_warps=_warps(block)
        )
        ctx.save_for_backward(total, weight, inverse)
        ctx.adds = adds
        # After the last norm nothing uses the sum. Without this line torch would write zeros for its gradient, and the kernel
        # read them.
        ctx.set_materialize_grads(False)
        return normed, total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, total_gradient: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor, None]:
        total, weight, inverse = ctx.saved_tensors
        width = total.shape[-1]
        rows = total.numel() // width
        gradient = torch.zeros_like(total) if gradient is None else gradient.contiguous()
        total_gradient = None if total_gradient is None else total_gradient.contiguous()
        result = torch.empty_like(total)
        programs = min(rows, PROGRAMS)
        sums = torch.empty(programs, width, dtype=torch.float32, device=total.device)
        block = triton.next_power_of_2(width)
        _backward[(programs,)](
            gradient, total_gradient, total, weight, inverse, result, allocate_parts(result), sums, rows, width, block,
            AHEAD if block * total.element_size() <= WIDEST_AHEAD_BYTES else 1,
            num_warps=max(_warps(block), min(8, block // 256)),
        )  # fmt: skip
        return result, result if ctx.adds else None, sums.sum(0).to(weight.dtype), None


def rms_norm(stream: Tensor, addend: Tensor | None, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the norm of `stream` + `addend` over the last axis, times `weight`, and the sum. Statistics are in float32.

    `stream` and `addend` are contiguous and [..., width], `weight` [width].
    """
    normed, total = _Norm.apply(stream, addend, weight, epsilon)  # type: ignore[no-untyped-call]
    return normed, total


def _warps(block: int) -> int:
    return min(16, max(1, block // 512))


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    stream, addend, weight, total, normed, parts, inverse, width, epsilon, ADDS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(stream + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        values += tl.load(addend + row * width + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + row * width + columns, values, mask=inside)
    scale = 1 / tl.sqrt(tl.sum(values * values) / width + epsilon)
    tl.store(inverse + row, scale)
    factors = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    values = values * scale * factors
    tl.store(normed + row * width + columns, values, mask=inside)
    if parts is not None:
        store_amax(values, normed.dtype.element_ty, parts)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    gradient, total_gradient, total, weight, inverse, result, parts, sums, rows, width, BLOCK: tl.constexpr, AHEAD: tl.constexpr
):
    program = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    factors = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    sum_of_rows = tl.zeros([BLOCK], dtype=tl.float32)
    amax_bits = tl.zeros([BLOCK], dtype=tl.int32)
    for row in tl.range(program, rows, tl.num_programs(0), num_stages=AHEAD):
        start = row * width
        scale = tl.load(inverse + row)
        normed = tl.load(total + start + columns, mask=inside, other=0.0).to(tl.float32) * scale
        output = tl.load(gradient + start + columns, mask=inside, other=0.0).to(tl.float32)
        sum_of_rows += output * normed
        output = output * factors
        share = tl.sum(output * normed) / width
        passed = (output - normed * share) * scale
        if total_gradient is not None:
            passed += tl.load(total_gradient + start + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(result + start + columns, passed, mask=inside)
        if parts is not None:
            amax_bits = tl.maximum(amax_bits, magnitude_bits(passed))
    tl.store(sums + program * width + columns, sum_of_rows, mask=inside)
    if parts is not None:
        store_amax(amax_bits.to(tl.float32, bitcast=True), result.dtype.element_ty, parts)
