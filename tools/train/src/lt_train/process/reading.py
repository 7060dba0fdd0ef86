"""Read numbers from the device while the device continues.

A plain read waits for all work that was launched before it. The host would then launch the next step when the device is idle: 2
to 4 ms of a step. If the read is requested before the optimizer is launched, loss and norm arrive while the optimizer runs.
"""

from typing import Any

import torch
from torch import Tensor

from lt_train.process import interruption
from lt_train.process.device import CPU, CUDA


class Reading:
    """The values of `tensor` after the work launched so far. A CPU tensor must not change until they are read."""

    def __init__(self, tensor: Tensor):
        self._values = tensor
        self._copied = None
        if tensor.device.type == CUDA:
            self._values = torch.empty_like(tensor, device=CPU, pin_memory=True).copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def values(self) -> list[Any]:
        """Wait for the values of a one-dimensional tensor. Raise Echo if an aborted collective made them."""
        if self._copied:
            self._copied.synchronize()
        interruption.check()
        read_values: list[Any] = self._values.tolist()
        return read_values
