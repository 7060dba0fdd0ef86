"""Copy a rank's state to memory between two steps, in turns into two segments, and give each complete copy to the launcher.

    training   step N | copy begins | forward, backward | update waits for the copies | step N+1 ends | the launcher has the copy
    launcher                                                                                           | sends it to another node

On a CPU the copy is made at once. On a GPU it goes through a separate stream into page-locked memory, and the next update waits
for it on the device. A segment is written again only when every rank's copy in the other segment is on two nodes.
"""

import contextlib
import threading
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lt_train.checkpoint.memory import rank_state
from lt_train.checkpoint.memory.keeper import Keeper
from lt_train.checkpoint.memory.segment import Segment
from lt_train.checkpoint.shards.host_staging import SMALL_BYTES, Copies
from lt_train.checkpoint.training_state import TrainingState


class Copier:
    """A context. `copies` copies from a GPU; None on a CPU. `waited_seconds` is how long training waited for the last copy."""

    def __init__(self, state: TrainingState, keeper: Keeper, copies: Copies | None):
        self._state = state
        self._keeper = keeper
        self._copies = copies
        self._segments: list[Segment | None] = [None, None]
        self._locked: list[Tensor] = []
        tensors, numbers = rank_state.live_tensors(state), rank_state.numbers(state)
        self.size_bytes = sum(tensor.nbytes for tensor in tensors.values())
        # Beside the first steps: to clear and lock 25 GiB of pages takes seconds.
        self._making = threading.Thread(target=self._make, args=(tensors, numbers), name="memory-copies", daemon=True)
        self._slot = 0
        # The step whose copies are under way on the GPU.
        self._pending: int | None = None
        self.newest: int | None = None
        self.waited_seconds = 0.0

    def __enter__(self) -> "Copier":
        self._making.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._making.join()
        # A failed device has already reported its error.
        with contextlib.suppress(RuntimeError):
            if self._pending is not None and self._copies:
                self._copies.wait()
        for number in (0, 1):
            self._free(number)

    @property
    def is_busy(self) -> bool:
        """Whether a new copy cannot begin yet: the last one is not on two nodes, or there is no memory yet."""
        if self._making.is_alive() or self._pending is not None:
            return True
        return self.newest is not None and not self._keeper.is_safe(self.newest)

    @torch.no_grad()
    def begin(self) -> None:
        """Copy the present state, or begin to. The previous copy must be complete."""
        began = time.perf_counter()
        tensors, numbers = rank_state.live_tensors(self._state), rank_state.numbers(self._state)
        self._slot = 1 - self._slot
        segment, places = self._prepare(tensors, numbers)
        large = []
        for source, place in zip(tensors.values(), places, strict=True):
            # Small tensors are copied in order with the computation: some change within the next forward and backward pass.
            if self._copies is None or source.nbytes <= SMALL_BYTES:
                place.copy_(source, non_blocking=True)
            else:
                large.append((source, place))
        self._pending = self._state.iteration
        if self._copies:
            self._copies.begin()
            for source, place in large:
                self._copies.run(partial(place.copy_, source, non_blocking=True), (source,))
            self._copies.end()
        else:
            self._complete(segment)
        self.waited_seconds = time.perf_counter() - began

    def hold_back(self) -> None:
        """Order the next update after the copies. On a GPU, only the device waits."""
        if self._pending is not None and self._copies:
            self._copies.hold_back()

    def poll(self) -> None:
        """Give the launcher the copy if it is complete: a step after `begin`."""
        segment = self._segments[self._slot]
        if self._pending is not None and self._copies and segment:
            self._copies.wait()
            self._complete(segment)

    def _complete(self, segment: Segment) -> None:
        assert self._pending is not None
        segment.complete(self._pending)
        self._keeper.keep(self._pending, segment.descriptor, len(segment.memory))
        self.newest, self._pending = self._pending, None

    def _prepare(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> tuple[Segment, list[Tensor]]:
        """Return the segment in turn and the places of `tensors` in it. It is made anew if the state has grown."""
        segment = self._segments[self._slot]
        places = segment.begin(tensors, numbers) if segment else None
        if segment is None or places is None:
            self._free(self._slot)
            segment = self._make_segment(self._slot, tensors, numbers)
            places = segment.begin(tensors, numbers)
        assert places is not None
        return segment, places

    def _make(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        for slot in (0, 1):
            self._make_segment(slot, tensors, numbers)

    def _make_segment(self, slot: int, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> Segment:
        segment = self._segments[slot] = Segment.create(tensors, numbers)
        # The kernel clears each page when it is first touched.
        segment.memory.zero_()
        if self._copies and self._copies.lock(segment.memory):
            self._locked.append(segment.memory)
        return segment

    def _free(self, slot: int) -> None:
        if segment := self._segments[slot]:
            if self._copies and any(memory is segment.memory for memory in self._locked):
                self._copies.unlock(segment.memory)
            self._locked = [memory for memory in self._locked if memory is not segment.memory]
            segment.close()
            self._segments[slot] = None
