"""A rank that leaves copies of its state in memory, and a second one that restores a copy: their losses."""

import json
import os
import sys
from pathlib import Path

import one_process
from staged_training import STAGED, LateCopies

from lt_train.checkpoint.memory import keeper

COMMON = (
    *("--mock-data", "--model", "tiny", "--num-layers", "1", "--hidden-size", "32", "--ffn-hidden-size", "64"),
    *("--num-attention-heads", "2", "--num-query-groups", "1", "--vocab-size", "100", "--seq-length", "8", "--ranks", "1"),
    *("--micro-batch-size", "1", "--global-batch-size", "2", "--train-iters", "4", "--lr", "1e-2", "--log-interval", "1"),
    *("--eval-iters", "0", "--device", "cpu", "--max-restarts", "1", "--replicate-interval", "2", "--save-interval", "1000"),
)

RESTORED = "restored"


class Copies:
    """Keeps the copies in this process."""

    def __init__(self) -> None:
        self.stored_step = 0
        self.descriptors: dict[int, int] = {}

    def keep(self, step: int, descriptor: int, size_bytes: int) -> None:
        self.descriptors[step] = os.dup(descriptor)

    def is_safe(self, step: int) -> bool:
        return step in self.descriptors

    def fetch(self) -> int:
        return self.descriptors[self.stored_step]


def main(place: str, runs: str) -> None:
    rank, copies = one_process.prepare(), Copies()
    keeper.use(copies)
    from lt_train.checkpoint.memory import copier
    from lt_train.process import device

    # All but the smallest tensors are copied late where a device copies them.
    copier.SMALL_BYTES = 64

    def before(name: str, way: str) -> None:
        copies.stored_step = 2 if way == RESTORED else 0
        device.host_copies = lambda rank_device: LateCopies() if way == STAGED else None

    one_process.train_each(rank, Path(place), json.loads(runs), COMMON, before)
    print(json.dumps(sorted(copies.descriptors)))


if __name__ == "__main__":
    main(*sys.argv[1:])
