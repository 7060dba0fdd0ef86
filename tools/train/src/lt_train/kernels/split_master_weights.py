"""Split float32 master weights into the bfloat16 weight that the model computes with, and 16 low bits.

An optimizer needs float32 weights, and the model bfloat16 weights, whose bits are nearly the upper half of the float32. The bits
of a float32 are the bfloat16's bits, shifted, plus 16 signed low bits, exactly for every number but NaN. So a parameter takes 4
bytes instead of 6, and AdamW moves 2 bytes less. The float32 is rounded to the nearest bfloat16, and at a tie to the larger
magnitude; PyTorch rounds ties to even.

Checkpoints hold float32 weights, for which the GPU has no room. When a rank saves, weights are joined a slice at a time on the
way to host memory. When a rank loads, weights are split piece by piece as they arrive, and `Loading` represents the float32
tensor.
"""

import weakref
from collections.abc import Callable
from typing import Self, TypeAlias

import torch
from torch import Tensor

# Returns a float32 tensor in host memory. Arguments: weight, low bits.
Joined: TypeAlias = Callable[[Tensor, Tensor], Tensor]
SLICE_ELEMENTS = 2**24
# Other NaN bit patterns would overflow when they are rounded.
NAN_BITS = 0x7FC00000


def split(masters: Tensor, weight: Tensor, low_bits: Tensor) -> None:
    """Write float32 `masters` to `weight`, bfloat16, and `low_bits`, int16; all contiguous, equally long and one-dimensional."""
    for whole, upper, lower in zip(*(torch.split(tensor, SLICE_ELEMENTS) for tensor in (masters, weight, low_bits)), strict=True):
        numbers = whole.to(upper.device)
        bits = numbers.view(torch.int32).masked_fill(numbers.isnan(), NAN_BITS)
        rounded = (bits + 0x8000) >> 16
        upper.view(torch.int16).copy_(rounded)
        lower.copy_(bits - (rounded << 16))


def join(weight: Tensor, low_bits: Tensor, masters: Tensor) -> None:
    """Invert `split`: write float32 `masters` in host memory. The copy is asynchronous if the memory is page-locked."""
    is_locked = masters.is_pinned()
    for whole, upper, lower in zip(*(torch.split(tensor, SLICE_ELEMENTS) for tensor in (masters, weight, low_bits)), strict=True):
        whole.view(torch.int32).copy_((upper.view(torch.int16).int() << 16) + lower, non_blocking=is_locked)


def joined(weight: Tensor, low_bits: Tensor) -> Tensor:
    """Invert `split`. Returns the float32 masters in host memory."""
    masters = torch.empty(weight.shape, dtype=torch.float32)
    join(weight, low_bits, masters)
    return masters


class Loading:
    """A split weight during loading. `whole` is a float32 tensor in host memory, which takes no memory before it is written.

    A reader finds the weight by `find_containing` and passes pieces to `put`. `take` splits elements that were written to
    `whole`.
    """

    _all: "weakref.WeakValueDictionary[int, Loading]" = weakref.WeakValueDictionary()

    def __init__(self, weight: Tensor, low_bits: Tensor):
        self.weight, self.low_bits = weight.view(-1), low_bits.view(-1)
        self.whole = torch.empty(weight.shape, dtype=torch.float32)
        self._ranges: list[tuple[int, int]] = []
        self._all[self.whole.data_ptr()] = self

    @classmethod
    def find_containing(cls, target: Tensor) -> tuple[Self, int] | None:
        """Return the weight whose `whole` contains `target`, and the offset of `target` in it. None for other tensors."""
        loading = cls._all.get(target.untyped_storage().data_ptr()) if target.dtype == torch.float32 else None
        return (loading, int(target.storage_offset())) if loading is not None else None  # type: ignore[return-value]

    def put(self, masters: Tensor, begin: int) -> None:
        """Split `masters` into the elements from `begin` on. Any thread may call this."""
        end = begin + len(masters)
        split(masters, self.weight[begin:end], self.low_bits[begin:end])
        self._ranges.append((begin, end))

    def take(self, whole: Tensor) -> None:
        """Split the elements of `whole` that `put` has not set."""
        position = 0
        for begin, end in [*sorted(self._ranges), (len(self.weight), len(self.weight))]:
            if position < begin:
                split(whole.view(-1)[position:begin], self.weight[position:begin], self.low_bits[position:begin])
            position = max(position, end)
