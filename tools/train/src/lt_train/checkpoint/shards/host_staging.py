"""Copy a rank's part of a checkpoint from a GPU to host memory while training continues, and share it with the writer process.

    training    forward, backward  | update waits for the copies | update, forward ...
    copies      ......... D2H .....|
    writer                                                       | starts at the end of the step, reads the copies

Weights and optimizer states change in the optimizer's update only, which waits for the copies. So training waits for the plan of
a save, and the copies have a forward and a backward pass of time.

On an H200, a save of 25.1 GiB stops training for 0.61 s if a step takes 68 ms: 0.16 s for the plan, and 0.45 s while the next
update waits for a bus of 55 GB/s. Longer steps hide that wait (2026-11-27, tests/bench/checkpoints.py).

There is a single buffer: training waits until the previous checkpoint is written before it begins the next, because the disk
would otherwise fall behind further with every save.
"""

import contextlib
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import torch

from lt_shared.console import warn
from lt_train.checkpoint.shards.shard_files import Bucket
from lt_train.checkpoint.shards.shared_memory import aligned, describe_file, shared_memory
from lt_train.checkpoint.shards.writer_process import File
from lt_train.kernels import split_master_weights

# The kernel clears a page when it is first touched. Several threads touch pieces of the buffer at a time, before the pages are
# locked: otherwise a single thread would clear all pages, and the driver may hold up other threads' calls meanwhile.
TOUCHING_THREADS, PIECE_BYTES = 8, 64 << 20
# Smaller tensors are copied on the computation's stream, because some change within a forward or backward pass (the balancing of
# experts). 1 MiB takes 20 microseconds on a bus of 50 GB/s.
SMALL_BYTES = 1 << 20


class Copies(Protocol):
    """Copy from a device to host memory beside its computation. `lt_train.process.device` implements it for GPUs."""

    def lock(self, memory: torch.Tensor) -> bool:
        """Page-lock host memory for the device. Return False if that fails. Any thread may call it."""

    def unlock(self, memory: torch.Tensor) -> None:
        """Undo `lock`."""

    def begin(self) -> None:
        """Order the copies after all work that the device has so far."""

    def run(self, work: Callable[[], object], sources: Iterable[torch.Tensor]) -> None:
        """Run `work`, which copies to host memory, beside the computation, and keep `sources` alive until it ends."""

    def end(self) -> None:
        """End the copies."""

    def hold_back(self) -> None:
        """Order later work of the device after the copies, without waiting on the host."""

    def wait(self) -> None:
        """Wait until the copies are complete."""


class HostStaging:
    """The page-locked host buffer of a rank, used for every save, and the copies into it.

    It replaces `tensor.to("cpu", non_blocking=True)` for every tensor. torch would take page-locked memory for every tensor,
    round it up to a power of two, and let the kernel find, clear and lock its pages, all while training waits.
    """

    def __init__(self, copies: Copies, expected_bytes: int):
        self.copies = copies
        self.memory = torch.empty(0, dtype=torch.uint8)
        # The file descriptor of the memory in this process. The writer process receives a duplicate.
        self.descriptor: int | None = None
        # Beside the first steps: page-locking 25.1 GiB takes 2.9 s, and an earlier save waits for it.
        self._locking = threading.Thread(target=self._make, args=(expected_bytes,), daemon=True)
        self._locking.start()
        self._is_copying = False
        # A split weight and its low bits, both flat, by the address of the tensor that `joined` returned for them.
        self._halves: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def joined(self, weight: torch.Tensor, low_bits: torch.Tensor) -> torch.Tensor:
        """Return untouched memory in place of `split_master_weights.joined`: a placeholder with the dtype and shape of the
        weight.

        `begin` joins the weight in the host buffer. To join 25.1 GiB first, in memory that the kernel clears page by page, took
        4.6 s more.
        """
        whole = torch.empty(weight.shape, dtype=torch.float32)
        self._halves[whole.data_ptr()] = weight.view(-1), low_bits.view(-1)
        return whole

    def begin(self, buckets: Sequence[Bucket]) -> list[Bucket]:
        """Start the copies. Return the buckets with host tensors, which are filled when `wait` returns."""
        self._locking.join()
        tensors = [tensor for _, _, (_, tensors) in buckets for _, tensor in tensors]
        total_bytes = sum(aligned(tensor.nbytes) for tensor in tensors)
        if total_bytes > len(self.memory):
            self._make(total_bytes)
        places = self._places(tensors)
        large: list[tuple[Callable[[], object], tuple[torch.Tensor, ...]]] = []
        for source, target in zip(tensors, places, strict=True):
            if halves := self._halves_of(source):
                weight, low_bits = halves
                large.append((partial(split_master_weights.join, weight, low_bits, target.view(-1)), halves))
            elif source.nbytes > SMALL_BYTES:
                large.append((partial(target.copy_, source, non_blocking=True), (source,)))
            else:
                target.copy_(source, non_blocking=True)
        self.copies.begin()
        for work, sources in large:
            self.copies.run(work, sources)
        self.copies.end()
        self._is_copying = True
        self._halves.clear()
        remaining_places = iter(places)
        return [
            (path, name, (objects, [(item, next(remaining_places)) for item, _ in items]))
            for path, name, (objects, items) in buckets
        ]

    def _halves_of(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the halves of a view of a tensor that `joined` returned; None for any other tensor."""
        whole = self._halves.get(tensor.untyped_storage().data_ptr())
        if whole is None:
            return None
        assert tensor.is_contiguous()
        begin, end = int(tensor.storage_offset()), int(tensor.storage_offset()) + tensor.numel()
        return whole[0][begin:end], whole[1][begin:end]

    def hold_back(self) -> None:
        """Order the device's later work, which changes the tensors, after the copies."""
        if self._is_copying:
            self.copies.hold_back()

    def wait(self) -> None:
        """Wait until the copies are complete."""
        if self._is_copying:
            self.copies.wait()
        self._is_copying = False

    def close(self) -> None:
        """Free the buffer. A rank that continues in this process after losing another rank makes a new buffer."""
        self._locking.join()
        # A failed device has already reported its error.
        with contextlib.suppress(RuntimeError):
            self.wait()
        self._free()

    def _free(self) -> None:
        if len(self.memory):
            self.copies.unlock(self.memory)
        self.memory = torch.empty(0, dtype=torch.uint8)
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def _make(self, size_bytes: int) -> None:
        self._free()
        self.descriptor, self.memory = shared_memory(size_bytes)
        with ThreadPoolExecutor(TOUCHING_THREADS) as pool:
            # Writing one byte per page is enough for the kernel to clear the page.
            starts = range(0, len(self.memory), PIECE_BYTES)
            list(pool.map(torch.Tensor.zero_, (self.memory[start : start + PIECE_BYTES : mmap.PAGESIZE] for start in starts)))
        if not self.copies.lock(self.memory):
            warn("the host memory for checkpoints could not be page-locked: training waits longer for each")

    def files(self, buckets: Sequence[Bucket]) -> list[File]:
        """Return the files that the writer process writes from the buckets that `begin` returned."""
        return [
            describe_file(bucket, [tensor.data_ptr() - self.memory.data_ptr() for _, tensor in bucket[2][1]])
            for bucket in buckets
        ]

    def _places(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        places, offset = [], 0
        for tensor in tensors:
            places.append(self.memory[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape))
            offset += aligned(tensor.nbytes)
        return places
