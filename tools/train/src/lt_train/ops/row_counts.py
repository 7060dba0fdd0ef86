"""Copy the number of rows that a rank's experts get to the host, which must know it to allocate the rows.

With experts on other ranks, the number depends on the routing. The host could allocate an upper bound instead, but all tokens may
go to a single rank: in a group of n ranks every tensor of rows would be up to n times as large. So the host waits for one number
per layer. The number is copied to pinned memory as soon as it is computed. Kernels that only need the bound, such as the sort of
the rows, are launched before the host waits, so that the GPU has work meanwhile. The backward pass knows the number. If it
recomputes the forward pass, it takes the forward pass's number without waiting, and the GPU checks that the number is right, so
that a wrong order of passes ends the run.
"""

import collections
from collections.abc import Callable

import torch
from torch import Tensor

from lt_train.process.device import CPU


class RowCounts:
    """Row counts of a layer. With `recomputes`, a pass without gradients queues its count for the pass with gradients."""

    def __init__(self, recomputes: bool):
        self._recomputes = recomputes
        self._forward_counts: collections.deque[int] = collections.deque()

    def start_copy(self, count: Tensor, training: bool) -> Callable[[], int]:
        """Start to copy `count` to the host. Returns a function that waits for it."""
        has_gradients = torch.is_grad_enabled()
        if has_gradients and self._forward_counts:
            expected = self._forward_counts.popleft()
            torch._assert_async(count == expected, "the experts' rows are not those of the forward pass")
            return lambda: expected
        wait = _copy_to_host(count)
        if has_gradients or not training or not self._recomputes:
            return wait

        def wait_and_queue() -> int:
            self._forward_counts.append(wait())
            return self._forward_counts[-1]

        return wait_and_queue


def _copy_to_host(count: Tensor) -> Callable[[], int]:
    if not count.is_cuda:
        return lambda: int(count)
    number = torch.empty_like(count, device=CPU, pin_memory=True)
    number.copy_(count, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> int:
        copied.synchronize()
        return int(number)

    return wait
