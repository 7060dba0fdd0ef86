"""Keys and values of a whole sequence from context-parallel ranks' chunks, and their gradients back, while attention computes.

Of 2 x N chunks rank r has chunks r and 2N-1-r. The queries of chunk r see keys of the sequence's first half only: that half is
gathered first, and attention of chunk r runs while the second half is. In the backward pass chunk 2N-1-r comes first, and the
gradients of the second half are summed to their ranks while those of chunk r are computed. So half of the bytes of a layer are
waited for. With two ranks and Llama 3's 8 heads of keys and values of 128 channels, in bf16, that is 16 MiB from the other rank
forward and as much backward for 16,384 tokens: some 0.1 ms each, where attention takes 8. Attention grows with the square of the
tokens, the bytes do not. Gathering a few heads at a time would hide half of the rest, and makes kernels smaller: not done.

The whole is kept for the backward pass, unless the layer is recomputed: 4 KiB a token of the sample for those heads, 64 MiB a
layer for 16,384 tokens and 512 MiB for 131,072. Gathering it again would save half of that on two ranks, and cost 0.2 ms for
16,384 tokens.
"""

from typing import Any

import torch
import torch.distributed
from torch import Tensor


class GatheredChunks:
    """Keys [s, b, groups, d] and values [s, b, groups, v] of this rank's two chunks in, all ranks' in the sequence's order out.

    `whole` is [S, b, groups, d + v], a head's key before its value. It is only there as far as `until` has been asked for.
    """

    def __init__(self, key: Tensor, value: Tensor, group: Any):
        own = torch.cat((key, value), dim=-1)
        self._ranks = group.size()
        self.whole = own.new_empty(len(own) * self._ranks, *own.shape[1:])
        first, self._second = self.whole.chunk(2)
        # The last chunks of the sequence are those of the first ranks.
        self._backwards = torch.empty_like(self._second)
        gather = torch.distributed.all_gather_into_tensor
        self._work = [
            gather(whole, part.contiguous(), group=group, async_op=True)
            for whole, part in zip((first, self._backwards), own.chunk(2), strict=True)
        ]

    def until(self, end: int) -> Tensor:
        """`whole`, with what is before position `end`."""
        if len(self._work) == 2:
            self._work.pop(0).wait()
        if self._work and end > len(self._second):
            self._work.pop().wait()
            _reverse_chunks(self._backwards, self._second, self._ranks)
        return self.whole


class SummedChunks:
    """Gradients `whole` [S, ...] of this rank's share of the work in, their sum over the ranks for its own two chunks out.

    `add_second` when those of the second half are complete, then `own` when all are.
    """

    def __init__(self, whole: Tensor, group: Any):
        self._group = group
        self._first, self._second = whole.chunk(2)
        self._own = whole.new_empty(len(whole) // group.size(), *whole.shape[1:])
        self._work: list[Any] = []

    def add_second(self) -> None:
        self._backwards = torch.empty_like(self._second)
        _reverse_chunks(self._second, self._backwards, self._group.size())
        self._sum(self._own.chunk(2)[1], self._backwards)

    def own(self) -> Tensor:
        self._sum(self._own.chunk(2)[0], self._first)
        for work in self._work:
            work.wait()
        return self._own

    def _sum(self, own: Tensor, parts: Tensor) -> None:
        self._work.append(torch.distributed.reduce_scatter_tensor(own, parts, group=self._group, async_op=True))


def _reverse_chunks(source: Tensor, target: Tensor, count: int) -> None:
    torch._foreach_copy_(list(target.chunk(count)), list(reversed(source.chunk(count))))
