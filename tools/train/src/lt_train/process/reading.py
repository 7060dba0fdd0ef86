"""Numbers that the host reads from the device while the device continues.

A plain read waits for everything that was launched before it. The host would then come to launch the next step when the device
has nothing left to do: 2 to 4 ms of a step. Asked for before the optimizer is launched, loss and norm are there while it runs.
"""

from typing import Any

import torch
from torch import Tensor

from lt_train.process import interruption
from lt_train.process.device import CPU, CUDA


class Reading:
    """The numbers of `tensor` after what has been launched so far; on a CPU it must stay as it is."""

    def __init__(self, tensor: Tensor):
        self._values = tensor
        self._copied = None
        if tensor.device.type == CUDA:
            self._values = torch.empty_like(tensor, device=CPU, pin_memory=True).copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def values(self) -> list[Any]:
        """The numbers of a tensor of one dimension. Raises Echo when they were made of collectives that were aborted."""
        if self._copied:
            self._copied.synchronize()
        interruption.check()
        read_values: list[Any] = self._values.tolist()
        return read_values
