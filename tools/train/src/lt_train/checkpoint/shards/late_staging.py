"""A rank's part of a checkpoint on a CPU: a tensor is copied for the writer process when its turn comes, or before it changes.

    training    forward, backward              | update waits: what is not written yet is copied | update, forward ...
    writer      asks for one tensor after the other, each file's into the same memory            | writes those copies

So memory is needed for the largest tensor of each file, and for what the writer has not reached when the next update begins; it
is given back when the files are written. 1 GiB of a run of 1.9 stops training for 0.56 to 0.88 s, with a peak of 1.9 GiB; a fork
of the rank stopped it for 0.92 to 1.06 s with 2.1 GiB, because the kernel copied each page that training wrote to, gradients and
activations, too, one by one (2 busy cores of an AMD EPYC, 2026-11-30, tests/bench/checkpoints.py --brief).

Small tensors are copied at once, because some change within a forward or backward pass (the balancing of experts).
"""

import os
import threading
from collections.abc import Sequence

import torch

from lt_train.checkpoint.shards.host_staging import SMALL_BYTES
from lt_train.checkpoint.shards.shard_files import Bucket
from lt_train.checkpoint.shards.shared_memory import aligned, file_of, shared_memory
from lt_train.checkpoint.shards.writer_process import File
from lt_train.kernels import split_master_weights


class LateStaging:
    """Like HostStaging, for tensors that are in host memory."""

    def __init__(self) -> None:
        self.joined = split_master_weights.joined
        self.descriptor: int | None = None
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._lock = threading.Lock()
        # The tensors that are not copied yet, each with its place in the memory, by file and number in the file.
        self._left: dict[tuple[int, int], tuple[torch.Tensor, int]] = {}
        # The place in the memory that each file's tensors share in their turn.
        self._turns: list[int] = []
        # The places of tensors that were copied before their turn.
        self._offsets: dict[tuple[int, int], int] = {}

    def begin(self, buckets: Sequence[Bucket]) -> list[Bucket]:
        """Begin a save; the tensors must not change before `hold_back` is called."""
        end = 0
        for _, _, (_, tensors) in buckets:
            self._turns.append(end)
            end += aligned(max((tensor.nbytes for _, tensor in tensors), default=0))
        for file, (_, _, (_, tensors)) in enumerate(buckets):
            for number, (_, tensor) in enumerate(tensors):
                self._left[file, number] = tensor, end
                end += aligned(tensor.nbytes)
        self.descriptor, self._memory = shared_memory(end)
        self._copy([key for key, (tensor, _) in self._left.items() if tensor.nbytes <= SMALL_BYTES])
        return list(buckets)

    def files(self, buckets: Sequence[Bucket]) -> list[File]:
        """Return the files that the writer process writes from `buckets`."""
        return [
            file_of(bucket, [self._offsets.get((file, number)) for number in range(len(bucket[2][1]))])
            for file, bucket in enumerate(buckets)
        ]

    def offset(self, file: int, number: int) -> int:
        """Return the place of the next tensor of a file. The previous tensor of the file has been written."""
        with self._lock:
            if (file, number) in self._left:
                tensor, _ = self._left.pop((file, number))
                self._copy_to(self._turns[file], tensor)
                return self._turns[file]
            return self._offsets[file, number]

    def hold_back(self) -> None:
        """Copy the tensors whose turn has not come: they are about to change."""
        with self._lock:
            self._copy(list(self._left))

    def wait(self) -> None:
        """Return at once: no copies are pending."""

    def end(self) -> None:
        """Free the memory after the files were written or given up."""
        with self._lock:
            self._memory = torch.empty(0, dtype=torch.uint8)
            self._left.clear()
            self._offsets.clear()
            self._turns.clear()
            if self.descriptor is not None:
                os.close(self.descriptor)
                self.descriptor = None

    close = end

    def _copy(self, keys: Sequence[tuple[int, int]]) -> None:
        for key in keys:
            tensor, offset = self._left.pop(key)
            self._copy_to(offset, tensor)
            self._offsets[key] = offset

    def _copy_to(self, offset: int, tensor: torch.Tensor) -> None:
        self._memory[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
