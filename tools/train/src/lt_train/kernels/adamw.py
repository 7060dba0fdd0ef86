"""AdamW (Loshchilov and Hutter 2019) as one kernel: gradients of 16 or 32 bits in, float32 moments, weights of 16 bits out.

A float32 weight is stored as the bfloat16 of the model and 16 low bits, so 26 bytes move per parameter.
torch's fused AdamW between megatron-core's two copies, gradients to float32 and weights back to 16 bits, moves 40. The
clipping's factor stays on the device, and a step whose factor is not finite changes nothing.
"""

import triton
import triton.language as tl
from torch import Tensor, bfloat16, int16

from lt_train.kernels import split_master_weights

BLOCK = 2048
NAN_BITS = tl.constexpr(split_master_weights.NAN_BITS)


def adamw(
    weight: Tensor, rest: Tensor | None, moment: Tensor, square: Tensor, gradient: Tensor, factor: Tensor, *,
    rate: float, beta1: float, beta2: float, epsilon: float, decay: float, count: int, rounded: Tensor | None = None,
) -> None:  # fmt: skip
    """Make step number `count` for one parameter, in place. Every tensor is contiguous and has the parameter's size.

    `weight` is float32 without `rest`, or bfloat16 with its low bits `rest`, int16
    (`lt_train.kernels.split_master_weights`). `moment` and `square` are float32. The gradient is multiplied by `factor`, float32
    with one element. A float32 weight is written to `rounded`, bfloat16, with torch's rounding.
    """
    elements = weight.numel()
    if elements:
        if rest is not None:
            assert weight.dtype == bfloat16
            weight = weight.view(int16)
        if rounded is not None:
            assert rest is None
            rounded = rounded.view(int16)
        _step[(triton.cdiv(elements, BLOCK),)](
            weight, rest, rounded, moment, square, gradient, factor, rate, beta1, beta2, epsilon, 1 - rate * decay,
            1 / (1 - beta1**count), 1 / (1 - beta2**count), elements, BLOCK,
        )  # fmt: skip


@triton.jit
def _step(  # type: ignore[no-untyped-def]
    weight, rest, rounded, moment, square, gradient, factor, rate, beta1, beta2, epsilon, kept, correction1, correction2,
    elements, BLOCK: tl.constexpr,
):  # fmt: skip
    scale = tl.load(factor)
    if scale == scale and scale < float("inf"):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < elements
        slope = tl.load(gradient + at, mask=inside).to(tl.float32) * scale
        first = tl.load(moment + at, mask=inside)
        second = tl.load(square + at, mask=inside)
        stored = tl.load(weight + at, mask=inside)
        if rest is None:
            value = stored
        else:
            value = ((stored.to(tl.int32) << 16) + tl.load(rest + at, mask=inside)).to(tl.float32, bitcast=True)
        first += (slope - first) * (1 - beta1)
        second = second * beta2 + slope * slope * (1 - beta2)
        value *= kept
        value -= rate * correction1 * first / (tl.sqrt(second * correction2) + epsilon)
        tl.store(moment + at, first, mask=inside)
        tl.store(square + at, second, mask=inside)
        if rest is None:
            tl.store(weight + at, value, mask=inside)
            if rounded is not None:
                bits = tl.where(value == value, value.to(tl.int32, bitcast=True), NAN_BITS)
                # Ties to even.
                tl.store(rounded + at, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int16), mask=inside)
        else:
            bits = tl.where(value == value, value.to(tl.int32, bitcast=True), NAN_BITS)
            upper = (bits + 0x8000) >> 16
            tl.store(weight + at, upper.to(tl.int16), mask=inside)
            tl.store(rest + at, (bits - (upper << 16)).to(tl.int16), mask=inside)
