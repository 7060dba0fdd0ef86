"""Copy a rank's part of a checkpoint on a CPU: copy a tensor when the writer process asks for it, or before the tensor changes.

    training    forward, backward              | update waits: the remaining tensors are copied  | update, forward ...
    writer      asks for a tensor after the other, the tensors of a file into the same memory    | writes those copies

So memory is needed for the largest tensor per file, and for the tensors that the writer has not reached when the next update
begins. The memory is freed when the files are written. A checkpoint of 1 GiB, in a run that takes 1.9 GiB, stops training for
0.56 to 0.88 s, with a peak of 1.9 GiB. A fork of the rank stopped training for 0.92 to 1.06 s with 2.1 GiB, because the kernel
copied every page that training wrote to, including gradients and activations (2 busy cores of an AMD EPYC, 2026-11-30,
tests/bench/checkpoints.py --brief).
"""

import os
import threading
from collections.abc import Sequence

import torch

from lt_train.checkpoint.shards.host_staging import SMALL_BYTES
from lt_train.checkpoint.shards.shard_files import Bucket
from lt_train.checkpoint.shards.shared_memory import aligned, describe_file, shared_memory
from lt_train.checkpoint.shards.writer_process import File
from lt_train.kernels import split_master_weights


class LateStaging:
    """Stage tensors that are in host memory already. It has the methods of HostStaging."""

    def __init__(self) -> None:
        self.joined = split_master_weights.joined
        self.descriptor: int | None = None
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._lock = threading.Lock()
        # The tensors that are not copied yet, with their offsets in the memory, by file and number in the file.
        self._pending: dict[tuple[int, int], tuple[torch.Tensor, int]] = {}
        # By file: the offset of the memory that the tensors of the file share, if they are copied in their turn.
        self._turns: list[int] = []
        # The offsets of tensors that were copied before their turn.
        self._offsets: dict[tuple[int, int], int] = {}

    def begin(self, buckets: Sequence[Bucket]) -> list[Bucket]:
        """Begin a save; the tensors must not change before `hold_back` is called."""
        end = 0
        for _, _, (_, tensors) in buckets:
            self._turns.append(end)
            end += aligned(max((tensor.nbytes for _, tensor in tensors), default=0))
        for file, (_, _, (_, tensors)) in enumerate(buckets):
            for number, (_, tensor) in enumerate(tensors):
                self._pending[file, number] = tensor, end
                end += aligned(tensor.nbytes)
        self.descriptor, self._memory = shared_memory(end)
        # Small tensors are copied at once, because some change within a forward or backward pass (the balancing of experts).
        self._copy([key for key, (tensor, _) in self._pending.items() if tensor.nbytes <= SMALL_BYTES])
        return list(buckets)

    def files(self, buckets: Sequence[Bucket]) -> list[File]:
        """Return the files that the writer process writes from `buckets`."""
        return [
            describe_file(bucket, [self._offsets.get((file, number)) for number in range(len(bucket[2][1]))])
            for file, bucket in enumerate(buckets)
        ]

    def offset(self, file: int, number: int) -> int:
        """Return the offset of the next tensor in a file. The previous tensor in the file has been written."""
        with self._lock:
            if (file, number) in self._pending:
                tensor, _ = self._pending.pop((file, number))
                self._copy_to(self._turns[file], tensor)
                return self._turns[file]
            return self._offsets[file, number]

    def hold_back(self) -> None:
        """Copy the tensors whose turn has not come: they are about to change."""
        with self._lock:
            self._copy(list(self._pending))

    def wait(self) -> None:
        """Return at once: no copies are pending."""

    def end(self) -> None:
        """Free the memory after the files were written or given up."""
        with self._lock:
            self._memory = torch.empty(0, dtype=torch.uint8)
            self._pending.clear()
            self._offsets.clear()
            self._turns.clear()
            if self.descriptor is not None:
                os.close(self.descriptor)
                self.descriptor = None

    close = end

    def _copy(self, keys: Sequence[tuple[int, int]]) -> None:
        for key in keys:
            tensor, offset = self._pending.pop(key)
            self._copy_to(offset, tensor)
            self._offsets[key] = offset

    def _copy_to(self, offset: int, tensor: torch.Tensor) -> None:
        self._memory[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
