"""Split fp32 master weights: the bfloat16 weight that the model computes with, and its low 16 bits.

An optimizer needs weights in float32, and the model has them in bfloat16, whose bits are nearly the upper half. The float32 is
the bfloat16's bits, shifted, plus 16 signed low bits; exactly, for all that is a number. So a parameter takes 4 bytes
instead of 6, and AdamW moves 2 bytes less. The bfloat16 is the nearest one; of two as near, the larger in magnitude, where
PyTorch takes the even.

Checkpoints hold float32. The GPU has no room for it: what a rank saves is joined a slice at a time, on its way to host memory,
where it goes in any case. What it loads is split as it comes, a piece at a time; `Loading` stands for the whole meanwhile.
"""

import weakref
from collections.abc import Callable
from typing import Self, TypeAlias

import torch
from torch import Tensor

# A float32 tensor in host memory from a weight and its low bits.
Joined: TypeAlias = Callable[[Tensor, Tensor], Tensor]
SLICE_ELEMENTS = 2**24
# Others would overflow when they are rounded.
NAN_BITS = 0x7FC00000


def split(masters: Tensor, weight: Tensor, low_bits: Tensor) -> None:
    """Write float32 `masters` to `weight`, bfloat16, and `low_bits`, int16; all contiguous, of one size, in one dimension."""
    for whole, upper, lower in zip(*(torch.split(tensor, SLICE_ELEMENTS) for tensor in (masters, weight, low_bits)), strict=True):
        numbers = whole.to(upper.device)
        bits = numbers.view(torch.int32).masked_fill(numbers.isnan(), NAN_BITS)
        rounded = (bits + 0x8000) >> 16
        upper.view(torch.int16).copy_(rounded)
        lower.copy_(bits - (rounded << 16))


def join(weight: Tensor, low_bits: Tensor, masters: Tensor) -> None:
    """Write what `split` was given to float32 `masters` in host memory; to page-locked memory beside what the host does next."""
    is_locked = masters.is_pinned()
    for whole, upper, lower in zip(*(torch.split(tensor, SLICE_ELEMENTS) for tensor in (masters, weight, low_bits)), strict=True):
        whole.view(torch.int32).copy_((upper.view(torch.int16).int() << 16) + lower, non_blocking=is_locked)


def joined(weight: Tensor, low_bits: Tensor) -> Tensor:
    """What `split` was given, in host memory."""
    masters = torch.empty(weight.shape, dtype=torch.float32)
    join(weight, low_bits, masters)
    return masters


class Loading:
    """A split weight while it is loaded: `whole` is float32 in host memory, which takes none unless somebody writes to it.

    A reader that finds this by `of` passes on what it reads instead; the rest `take` finds in `whole`.
    """

    _all: "weakref.WeakValueDictionary[int, Loading]" = weakref.WeakValueDictionary()

    def __init__(self, weight: Tensor, low_bits: Tensor):
        self.weight, self.low_bits = weight.view(-1), low_bits.view(-1)
        self.whole = torch.empty(weight.shape, dtype=torch.float32)
        self._ranges: list[tuple[int, int]] = []
        self._all[self.whole.data_ptr()] = self

    @classmethod
    def of(cls, target: Tensor) -> tuple[Self, int] | None:
        """That of which `target` is a part in one piece, and where it begins; None of any other tensor."""
        found = cls._all.get(target.untyped_storage().data_ptr()) if target.dtype == torch.float32 else None
        return (found, int(target.storage_offset())) if found is not None else None  # type: ignore[return-value]

    def put(self, masters: Tensor, begin: int) -> None:
        """Take `masters` as the elements from `begin` on; called from any thread."""
        end = begin + len(masters)
        split(masters, self.weight[begin:end], self.low_bits[begin:end])
        self._ranges.append((begin, end))

    def take(self, whole: Tensor) -> None:
        """Take what was not `put` from `whole`."""
        done = 0
        for begin, end in [*sorted(self._ranges), (len(self.weight), len(self.weight))]:
            if done < begin:
                split(whole.view(-1)[done:begin], self.weight[done:begin], self.low_bits[done:begin])
            done = max(done, end)
