"""Training that saves through host memory as on a GPU, with copies of plain tensors that are made as late as may be.

`train` is what a test calls; as a program this file trains in several ways, one after the other.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from one_process import prepare, start, train_each

OPTIONS = (
    *("--mock-data", "--model", "tiny", "--num-layers", "1", "--hidden-size", "32", "--ffn-hidden-size", "64"),
    *("--num-attention-heads", "2", "--num-query-groups", "1", "--vocab-size", "128", "--seq-length", "8", "--lr", "1e-2"),
    *("--micro-batch-size", "1", "--global-batch-size", "2", "--train-iters", "5", "--save-interval", "2", "--log-interval", "1"),
    *("--eval-iters", "1", "--device", "cpu", "--ranks", "1", "--bf16", "--use-distributed-optimizer"),
)
STAGED = "staged"


class LateCopies:
    """A device whose copies are made when something has to wait for them, and not before."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.left: list[Callable[[], object]] = []

    def lock(self, memory: torch.Tensor) -> bool:
        self.calls.append("lock")
        return True

    def unlock(self, memory: torch.Tensor) -> None:
        self.calls.append("unlock")

    def begin(self) -> None:
        assert not self.left

    def run(self, work: Callable[[], object], sources: Iterable[torch.Tensor]) -> None:
        self.left.append(work)

    def end(self) -> None:
        self.calls.append("end")

    def _make(self) -> None:
        for work in self.left:
            work()
        self.left.clear()

    def hold_back(self) -> None:
        self.calls.append(f"hold back {bool(self.left)}")
        self._make()

    def wait(self) -> None:
        self.calls.append(f"wait {bool(self.left)}")
        self._make()


def train(place: Path, runs: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """What the copies of each run were asked for; each of `runs` is `STAGED` or "", and more options."""
    found: dict[str, list[str]] = start(__file__, place, runs)
    return found


def main(folder: Path, runs: dict[str, list[str]]) -> None:
    rank = prepare()
    from lt_train.checkpoint.shards import host_staging
    from lt_train.process import device

    # All but the smallest wait.
    host_staging.SMALL_BYTES = 64
    copies = {name: LateCopies() for name in runs}

    def before(name: str, way: str) -> None:
        device.host_copies = lambda where: copies[name] if way == STAGED else None

    train_each(rank, folder, runs, OPTIONS, before)
    print(json.dumps({name: those.calls for name, those in copies.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
