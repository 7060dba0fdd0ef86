"""The copies of ranks' states that a launcher keeps in memory: its ranks' copies, and the copies of a second node.

A rank writes two memories in turns, so that a complete copy is there while the next one is written. The step at the begin of a
memory is 0 while its content is incomplete.
"""

import dataclasses
import os
import threading
from collections.abc import Callable, Iterable

from lt_train.checkpoint.memory.header import read_step
from lt_train.planner.checkpoint_size import COPIES


@dataclasses.dataclass(frozen=True)
class Copy:
    """The copy of a rank's state after `step` steps, in the memory of `descriptor`."""

    step: int
    descriptor: int
    size_bytes: int

    @property
    def is_complete(self) -> bool:
        return read_step(self.descriptor) == self.step


class KeptCopies:
    """The copies by global rank. Threads may call all methods."""

    def __init__(self) -> None:
        self._copies: dict[int, list[Copy]] = {}
        self._lock = threading.RLock()

    def keep(self, rank: int, copy: Copy) -> None:
        """Keep the complete `copy`, whose descriptor then belongs to this object. Drop the oldest copies of the rank."""
        with self._lock:
            copies = self._drop(self._copies.get(rank, []), lambda earlier: earlier.step == copy.step or not earlier.is_complete)
            copies = sorted([*copies, copy], key=lambda candidate: candidate.step)
            self._copies[rank] = self._drop(copies, lambda candidate: candidate in copies[:-COPIES])

    def take_oldest(self, rank: int) -> Copy | None:
        """Give up the rank's oldest copy if it has COPIES copies, so that its memory can be written again."""
        with self._lock:
            copies = self._copies.get(rank, [])
            return copies.pop(0) if len(copies) >= COPIES else None

    def retain(self, step: int) -> None:
        """Drop all copies of other steps: the run goes on from `step`, and trains the later steps again."""
        with self._lock:
            for rank, copies in self._copies.items():
                self._copies[rank] = self._drop(copies, lambda candidate: candidate.step != step)

    def steps(self) -> dict[int, list[int]]:
        """Return the steps of the complete copies by rank."""
        with self._lock:
            return {rank: [copy.step for copy in copies if copy.is_complete] for rank, copies in self._copies.items()}

    def find(self, rank: int, step: int) -> Copy | None:
        """Return the complete copy of a rank's state after `step` steps, None if there is none."""
        with self._lock:
            return next((copy for copy in self._copies.get(rank, []) if copy.step == step and copy.is_complete), None)

    def open(self, rank: int, step: int) -> Copy | None:
        """Return the copy with a separate descriptor, which the caller closes."""
        with self._lock:
            copy = self.find(rank, step)
            return copy and dataclasses.replace(copy, descriptor=os.dup(copy.descriptor))

    def newest_common(self, ranks: Iterable[int]) -> int:
        """Return the newest step that every rank in `ranks` has here, 0 if there is none."""
        return newest_common([self.steps()], ranks)

    def close(self) -> None:
        with self._lock:
            for copies in self._copies.values():
                for copy in copies:
                    os.close(copy.descriptor)
            self._copies.clear()

    @staticmethod
    def _drop(copies: list[Copy], condition: Callable[[Copy], bool]) -> list[Copy]:
        """Close the copies that satisfy `condition`, and return the other copies."""
        dropped = [copy for copy in copies if condition(copy)]
        for copy in dropped:
            os.close(copy.descriptor)
        return [copy for copy in copies if copy not in dropped]


def newest_common(steps_of_nodes: Iterable[dict[int, list[int]]], ranks: Iterable[int]) -> int:
    """Return the newest step that every rank in `ranks` has on some node, 0 if there is none."""
    steps_by_rank: dict[int, set[int]] = {rank: set() for rank in ranks}
    for steps_of_node in steps_of_nodes:
        for rank in steps_by_rank.keys() & steps_of_node.keys():
            steps_by_rank[rank] |= set(steps_of_node[rank])
    return max(set.intersection(*steps_by_rank.values()), default=0) if steps_by_rank else 0
