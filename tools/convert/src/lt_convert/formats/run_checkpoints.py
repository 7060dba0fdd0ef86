"""The complete checkpoints of a training run, also while it trains.

A checkpoint that is being written must not be read, and each trainer shows in another way that one is complete:

- lt-train renames a complete directory to its final name; `run.json` in it has the size of every other file.
- Megatron-LM writes into the final directory from the beginning, and the iteration into `latest_checkpointed_iteration.txt` when
  all ranks have written. So what is newer than the tracker says is not complete, and neither is an older one that a crash left
  without `.metadata`, which torch writes last.
- TorchTitan writes into the final directory, and `.metadata` appears by rename when all ranks have written.
"""

import dataclasses
import re

from lt_convert import formats
from lt_convert.formats.location import TORCHTITAN_STEP, listing, tracked_iteration
from lt_convert.tensors.source_files import Files
from lt_shared import storage
from lt_shared.checkpoint_layout import RECORD, TRACKER, RunRecord
from lt_shared.console import BadData, NoInput

_ITERATION = re.compile(r"iter_(\d{7,})")


@dataclasses.dataclass(frozen=True, order=True)
class RunCheckpoint:
    """A checkpoint that the run wrote at `iteration`."""

    iteration: int
    directory: str

    @property
    def name(self) -> str:
        return self.directory.rpartition("/")[2]


def complete(run: str) -> list[RunCheckpoint]:
    """The complete checkpoints in the directory or URL of a run, oldest first; a `release` is none.

    Raises NoInput for a directory that does not exist, BadData for a tracker that names no iteration.
    """
    names = listing(run)
    with Files() as files:
        tracked = _tracked(run, names, files)
        found = [
            RunCheckpoint(int(match[1]), f"{run}/{name}")
            for name in names
            if (match := _ITERATION.fullmatch(name) or TORCHTITAN_STEP.fullmatch(name))
        ]
        return sorted(one for one in found if _is_complete(one, tracked, files))


def _tracked(run: str, names: list[str], files: Files) -> int:
    """The iteration that the tracker names; -1 without one, and while Megatron-LM writes it, when it is empty."""
    if TRACKER not in names or files.size_bytes(f"{run}/{TRACKER}") == 0:
        return -1
    iteration = tracked_iteration(run, files)
    return -1 if iteration is None else iteration


def _is_complete(one: RunCheckpoint, tracked: int, files: Files) -> bool:
    try:
        names = listing(one.directory)
        if formats.recognise(names) is None:
            return False
        if RECORD in names:
            return _has_all_files(one.directory, files)
    except (NoInput, BadData):
        # It was deleted since it was listed, or is being copied.
        return False
    return bool(TORCHTITAN_STEP.fullmatch(one.name)) or one.iteration <= tracked


def _has_all_files(directory: str, files: Files) -> bool:
    path = f"{directory}/{RECORD}"
    sizes = RunRecord.parse(files.read(path, 0, files.size_bytes(path)), path).files
    if storage.is_remote(directory):
        found = storage.sizes_below(directory)
        return all(found.get(name) == size for name, size in sizes.items())
    return all(files.size_bytes(f"{directory}/{name}") == size for name, size in sizes.items())
