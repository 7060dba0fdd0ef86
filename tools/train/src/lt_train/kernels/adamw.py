"""AdamW (Loshchilov and Hutter 2019) in one pass: gradients of 16 or 32 bits in, float32 state, weights of 16 bits out.

28 bytes move per parameter. torch's fused AdamW between megatron-core's two copies, gradients to float32 and weights back to 16
bits, moves 40. The clipping's factor stays on the device, and a step whose factor is not finite changes nothing.
"""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


def adamw(
    master: Tensor, moment: Tensor, square: Tensor, gradient: Tensor, weight: Tensor, factor: Tensor, *,
    rate: float, beta1: float, beta2: float, epsilon: float, decay: float, count: int,
) -> None:  # fmt: skip
    """Step number `count` of one parameter, in place; every tensor is contiguous and of its size.

    `master`, `moment` and `square` are float32; `weight` gets the rounded master. The gradient is multiplied by `factor`, float32
    of one element.
    """
    elements = master.numel()
    if elements:
        _step[(triton.cdiv(elements, BLOCK),)](
            master, moment, square, gradient, weight, factor, rate, beta1, beta2, epsilon, 1 - rate * decay,
            1 / (1 - beta1**count), 1 / (1 - beta2**count), elements, BLOCK,
        )  # fmt: skip


@triton.jit
def _step(  # type: ignore[no-untyped-def]
    master, moment, square, gradient, weight, factor, rate, beta1, beta2, epsilon, kept, correction1, correction2, elements,
    BLOCK: tl.constexpr,
):  # fmt: skip
    scale = tl.load(factor)
    if scale == scale and scale < float("inf"):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < elements
        slope = tl.load(gradient + at, mask=inside).to(tl.float32) * scale
        first = tl.load(moment + at, mask=inside)
        second = tl.load(square + at, mask=inside)
        first += (slope - first) * (1 - beta1)
        second = second * beta2 + slope * slope * (1 - beta2)
        value = tl.load(master + at, mask=inside) * kept
        value -= rate * correction1 * first / (tl.sqrt(second * correction2) + epsilon)
        tl.store(moment + at, first, mask=inside)
        tl.store(square + at, second, mask=inside)
        tl.store(master + at, value, mask=inside)
        tl.store(weight + at, value, mask=inside)
