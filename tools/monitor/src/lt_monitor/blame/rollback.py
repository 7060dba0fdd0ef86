"""How to go on without some samples: a skip list, and the command that begins at the checkpoint before them."""

import dataclasses
import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lt_shared.contracts import checkpoint_layout
from lt_shared.data.sample_order.run_order import AttemptOrder, OrderedDataset
from lt_shared.data.sample_order.skip_list import SkipList

VERSION = 1


def skip_lines(samples: Iterable[int], skipped: SkipList) -> str:
    """Format `samples` and the run's earlier `skipped` samples for `lt-train --skip-samples`: a line of JSON for each range."""
    skip_list = SkipList.of([*_alone(samples), *skipped.ranges])
    records = [{"v": VERSION, "kind": "skip", "samples": one} for one in skip_list.ranges]
    return "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)


def _alone(samples: Iterable[int]) -> list[tuple[int, int]]:
    """Each as a range of itself."""
    return [(sample, sample) for sample in samples]


def skipped_by(attempt: AttemptOrder) -> SkipList:
    """Read the attempt's skip list. Raises as `SkipList.read`."""
    words = iter(attempt.command)
    named = [word.partition("=")[2] or next(words, "") for word in words if word.partition("=")[0] == "--skip-samples"]
    return SkipList.read(named[-1]) if named else SkipList()


@dataclasses.dataclass(frozen=True)
class Rollback:
    """`command` is None where no command line is known that started the run."""

    checkpoint: Path | None
    samples: list[tuple[int, int]]
    command: str | None

    def to_record(self) -> dict[str, Any]:
        return {
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "samples": [list(one) for one in self.samples],
            "command": self.command,
        }


def plan(run: str, attempt: AttemptOrder, first_step: int, samples: Sequence[int], skip_list: str) -> Rollback:
    """The run goes on in a directory of its own, so that nothing of this one is lost."""
    checkpoint = checkpoint_layout.newest_before(Path(run), first_step)
    command = _command(run, attempt, checkpoint, skip_list) if attempt.command else None
    return Rollback(checkpoint, list(SkipList.of(_alone(samples)).ranges), command)


def _command(run: str, attempt: AttemptOrder, checkpoint: Path | None, skip_list: str) -> str:
    """The run's own command; of an option that is given twice, the later one counts."""
    words: list[str] = []
    for word in attempt.command:
        # A pipe cannot be read again: the datasets that came through it are named.
        words += _data_words(attempt) if word == "-" else [word]
    words += ["--load", str(checkpoint)] if checkpoint else []
    words += ["--save", f"{run.rstrip('/')}-skip", "--skip-samples", skip_list]
    return shlex.join(["lt-train", *words])


def _data_words(attempt: AttemptOrder) -> list[str]:
    if len(attempt.datasets) == 1:
        return [_data_word(attempt.datasets[0])]
    return [word for dataset in attempt.datasets for word in (repr(dataset.weight), _data_word(dataset))]


def _data_word(dataset: OrderedDataset) -> str:
    return dataset.prefix if dataset.shard_list is None else f"@{dataset.shard_list}"
