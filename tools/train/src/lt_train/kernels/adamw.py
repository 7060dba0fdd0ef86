"""AdamW (Loshchilov and Hutter 2019) as one kernel: gradients of 16 or 32 bits in, float32 moments, weights of 16 bits out.

A float32 weight is stored as the model's bfloat16 weight and 16 low bits, so 26 bytes move per parameter. torch's fused AdamW
moves 40 with megatron-core's two copies, gradients to float32 and weights back to 16 bits. The clipping factor stays on the
device, and a step whose factor is not finite changes nothing.
"""

import triton
import triton.language as tl
from torch import Tensor, bfloat16, int16

from lt_train.kernels import split_master_weights

BLOCK = 2048
NAN_BITS = tl.constexpr(split_master_weights.NAN_BITS)


def adamw(
    weight: Tensor, low_bits: Tensor | None, moment: Tensor, square: Tensor, gradient: Tensor, factor: Tensor, *,
    rate: float, beta1: float, beta2: float, epsilon: float, decay: float, count: int, rounded: Tensor | None = None,
) -> None:  # fmt: skip
    """Make step number `count` for one parameter, in place. Every tensor is contiguous and has the parameter's size.

    `weight` is float32 without `low_bits`, or bfloat16 with its low bits in `low_bits`, int16
    (`lt_train.kernels.split_master_weights`). `moment` and `square` are float32. The gradient is multiplied by `factor`, float32
    with one element. A float32 weight is written to `rounded`, bfloat16, with torch's rounding.
    """
    elements = weight.numel()
    if elements:
        if low_bits is not None:
            assert weight.dtype == bfloat16
            weight = weight.view(int16)
        if rounded is not None:
            assert low_bits is None
            rounded = rounded.view(int16)
        _step[(triton.cdiv(elements, BLOCK),)](
            weight, low_bits, rounded, moment, square, gradient, factor, rate, beta1, beta2, epsilon, 1 - rate * decay,
            1 / (1 - beta1**count), 1 / (1 - beta2**count), elements, BLOCK,
        )  # fmt: skip


@triton.jit
def _step(  # type: ignore[no-untyped-def]
    weight, low_bits, rounded, moment, square, gradient, factor, rate, beta1, beta2, epsilon, decay_factor, correction1,
    correction2, elements, BLOCK: tl.constexpr,
):  # fmt: skip
    scale = tl.load(factor)
    if scale == scale and scale < float("inf"):
        offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = offsets < elements
        slope = tl.load(gradient + offsets, mask=inside).to(tl.float32) * scale
        first = tl.load(moment + offsets, mask=inside)
        second = tl.load(square + offsets, mask=inside)
        stored = tl.load(weight + offsets, mask=inside)
        if low_bits is None:
            value = stored
        else:
            value = ((stored.to(tl.int32) << 16) + tl.load(low_bits + offsets, mask=inside)).to(tl.float32, bitcast=True)
        first += (slope - first) * (1 - beta1)
        second = second * beta2 + slope * slope * (1 - beta2)
        value *= decay_factor
        value -= rate * correction1 * first / (tl.sqrt(second * correction2) + epsilon)
        tl.store(moment + offsets, first, mask=inside)
        tl.store(square + offsets, second, mask=inside)
        if low_bits is None:
            tl.store(weight + offsets, value, mask=inside)
            if rounded is not None:
                bits = tl.where(value == value, value.to(tl.int32, bitcast=True), NAN_BITS)
                # Round ties to even.
                tl.store(rounded + offsets, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int16), mask=inside)
        else:
            bits = tl.where(value == value, value.to(tl.int32, bitcast=True), NAN_BITS)
            upper = (bits + 0x8000) >> 16
            tl.store(weight + offsets, upper.to(tl.int16), mask=inside)
            tl.store(low_bits + offsets, (bits - (upper << 16)).to(tl.int16), mask=inside)
