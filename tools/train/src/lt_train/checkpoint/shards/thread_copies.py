"""Copies for a checkpoint that a thread makes on a CPU while the next forward and backward pass compute.

Whoever waits for them takes part. 1 GiB stops training for SECONDS where a fork of the rank, whose pages the kernel copied one by
one while the update wrote to them, stopped it for 0.7 to 0.8 (2 cores of an AMD EPYC, 2026-11-30, tests/bench/checkpoints.py).
"""

import collections
import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch


class ThreadCopies:
    """As `lt_train.checkpoint.shards.host_staging.Copies`."""

    locks_memory = False

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "checkpoint copies")
        self._left: collections.deque[Callable[[], object]] = collections.deque()
        self._thread: Future[None] | None = None

    def lock(self, memory: torch.Tensor) -> bool:
        return True

    def unlock(self, memory: torch.Tensor) -> None:
        pass

    def begin(self) -> None:
        pass

    def run(self, work: Callable[[], object], sources: Iterable[torch.Tensor]) -> None:
        self._left.append(work)

    def end(self) -> None:
        self._thread = self._pool.submit(self._make)

    def hold_back(self) -> bool:
        self.wait()
        return True

    def wait(self) -> None:
        self._make()
        if self._thread:
            self._thread.result()

    def _make(self) -> None:
        while work := self._next():
            work()

    def _next(self) -> Callable[[], object] | None:
        """What neither the thread nor who waits for it has begun."""
        with contextlib.suppress(IndexError):
            return self._left.popleft()
        return None
