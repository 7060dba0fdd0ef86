"""How many rows the experts of a rank get, which the host must know to allocate them.

With experts on other ranks the number depends on the routing. An upper bound would do without it, but all tokens may go to one
rank: for a group of n ranks every tensor of rows would be up to n times as large. So the host waits for one number a layer. It is
copied into pinned memory as soon as it is computed, and kernels that only need the bound, the sort of the rows among them, are
launched before the host waits: the GPU has work meanwhile. The backward pass knows the number. A forward pass that is computed
again there gets the one that it had, and the GPU checks it, so that a wrong order of passes ends the run.
"""

import collections
from collections.abc import Callable

import torch
from torch import Tensor

from lt_train.process.device import CPU


class RowCounts:
    """Row counts of one layer. With `recomputes`, a pass without gradients queues its count for the pass with gradients."""

    def __init__(self, recomputes: bool):
        self._recomputes = recomputes
        self._known: collections.deque[int] = collections.deque()

    def coming(self, count: Tensor, training: bool) -> Callable[[], int]:
        """`count` is on its way to the host; the function returned waits for it."""
        has_gradients = torch.is_grad_enabled()
        if has_gradients and self._known:
            expected = self._known.popleft()
            torch._assert_async(count == expected, "the experts' rows are not those of the forward pass")
            return lambda: expected
        arrive = _to_host(count)
        if has_gradients or not training or not self._recomputes:
            return arrive

        def arrive_and_keep() -> int:
            self._known.append(arrive())
            return self._known[-1]

        return arrive_and_keep


def _to_host(count: Tensor) -> Callable[[], int]:
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
