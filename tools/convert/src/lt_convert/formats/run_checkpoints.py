"""The complete checkpoints of a training run, also while it trains.

A checkpoint that is being written must not be read, and each trainer marks complete checkpoints differently:

- lt-train renames a complete directory to its final name; `run.json` in it has the size of every other file.
- Megatron-LM writes into the final directory from the beginning, and the iteration into `latest_checkpointed_iteration.txt` when
  all ranks have written. So a checkpoint newer than the tracker's iteration is not complete, and neither is an older one that a
  crash left without `.metadata`, which torch writes last, or without `metadata.json`, which megatron-core writes behind that.
- TorchTitan writes into the final directory, and `.metadata` appears by rename when all ranks have written. Its last checkpoint
  may be in Hugging Face's format, where the index of the safetensors files is last.
- OLMo-core writes `.metadata.json` behind the tensors, and then `config.json`, without which the model is unknown.
- Megatron-Bridge writes as Megatron-LM does, then `train_state.pt`, its own tracker `latest_train_state.pt`, Megatron-LM's
  tracker and, last, `run_config.yaml`, without which the model is unknown. Its first versions had only their own tracker.
- NeMo 2 has an empty file `NAME-unfinished` beside the directory NAME while it writes, and also while it deletes. NAME ends in
  `-last` for a repeated checkpoint, and in `-EMA` for averaged weights: both are left out.
"""

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Collection

from lt_convert import formats
from lt_convert.containers import torch_archive
from lt_convert.formats import olmo_core
from lt_convert.formats.directories import OLMO_STEP, TORCHTITAN_STEP, listing
from lt_convert.formats.location import is_finished_step, tracked_iteration
from lt_convert.formats.megatron import provider_config, torch_dist, train_state
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData, NoInput
from lt_shared.contracts.checkpoint_layout import COMMON, RECORD, TRACKER, RunRecord
from lt_shared.files import storage

_ITERATION = re.compile(r"iter_(\d{7,})")
_NEMO_STEP = re.compile(r"(?:.*[-_])?step=(\d+)(?![\d.]).*")
_NEMO_UNFINISHED, _NEMO_LAST, _NEMO_AVERAGE = "-unfinished", "-last", "-EMA"
# Where NeMo keeps them, below the directory of a run.
_NEMO_CHECKPOINTS = "checkpoints"
_SETTLED_SECONDS = 600


@dataclasses.dataclass(frozen=True, order=True)
class RunCheckpoint:
    """A checkpoint that the run wrote at `iteration`. `name` names its directory; for NeMo it has the step: `step-100`."""

    iteration: int
    directory: str
    name: str


def complete(run: str) -> list[RunCheckpoint]:
    """The complete checkpoints in the directory or URL of a run, oldest first; a `release` is none.

    Raises NoInput for a directory that does not exist, BadData for a tracker that names no iteration.
    """
    names = listing(run)
    with Files() as files:
        tracked = _tracked(run, names, files)
        numbered = _numbered(run, names)
        if not numbered:
            return _of_nemo(f"{run}/{_NEMO_CHECKPOINTS}" if _NEMO_CHECKPOINTS in names else run, files)
        return sorted(one for one in numbered if _is_complete(one, tracked, files))


def damaged(run: str, whole: Collection[RunCheckpoint]) -> list[RunCheckpoint]:
    """The checkpoints of a run that are not complete, are not among the complete ones `whole`, and that nobody writes or deletes.

    A checkpoint that is newer than all of `whole` counts if its trainer has finished it: it has `run.json`, which lt-train writes
    before the directory gets its name, or the tracker names it or a later one. Otherwise nothing in it must have appeared or
    gone for `_SETTLED_SECONDS`, which is not known on a remote store.
    """
    names, newest = {one.name for one in whole}, max((one.iteration for one in whole), default=-1)
    listed = listing(run)
    broken = []
    with Files() as files:
        tracked = _tracked(run, listed, files)
        for one in _numbered(run, listed):
            if one.name in names:
                continue
            is_newer = one.iteration > newest
            is_over = (is_newer and _is_finished(one, tracked)) or (whole and _is_settled(one, is_newer))
            # It may have been completed since `whole` was read.
            if is_over and not _is_complete(one, tracked, files):
                broken.append(one)
    missing = [] if tracked <= newest or any(one.iteration == tracked for one in _numbered(run, listed)) else [tracked]
    broken += [RunCheckpoint(step, f"{run}/iter_{step:07d}", f"iter_{step:07d}") for step in missing]
    return sorted(broken)


def unfinished(run: str, whole: Collection[RunCheckpoint]) -> list[RunCheckpoint]:
    """List steps of TorchTitan and OLMo-core that are newer than the complete ones and lack the files that are written last."""
    newest = max((one.iteration for one in whole), default=-1)
    newer = [one for one in _numbered(run, listing(run)) if one.iteration > newest and _is_step(one)]
    return sorted(one for one in newer if not is_finished_step(one.directory))


def _is_finished(one: RunCheckpoint, tracked: int) -> bool:
    """Whether a trainer has said that it finished a checkpoint."""
    if _is_step(one):
        return is_finished_step(one.directory)
    with contextlib.suppress(NoInput):
        names = listing(one.directory)
        # Megatron-Bridge writes the tracker before the last file of a checkpoint.
        is_being_written = train_state.FILE in names and provider_config.RUN_CONFIG not in names
        return RECORD in names or (one.iteration <= tracked and not is_being_written)
    return False


def _is_settled(one: RunCheckpoint, is_newer: bool) -> bool:
    """Return whether a directory has not changed for a while. Megatron-LM leaves unfinished checkpoints, and rewrites them."""
    if storage.is_remote(one.directory) or (is_newer and not _is_step(one)):
        return False
    try:
        return os.stat(one.directory).st_mtime < time.time() - _SETTLED_SECONDS
    except OSError:
        return False


def _numbered(run: str, names: list[str]) -> list[RunCheckpoint]:
    numbered = [
        RunCheckpoint(int(match[1]), f"{run}/{name}", name)
        for name in names
        if (match := _ITERATION.fullmatch(name) or TORCHTITAN_STEP.fullmatch(name))
    ]
    steps = [match for name in names if (match := OLMO_STEP.fullmatch(name))]
    return numbered or [RunCheckpoint(int(match[1]), f"{run}/{match[0]}", f"step-{int(match[1])}") for match in steps]


def _is_step(one: RunCheckpoint) -> bool:
    """Whether a checkpoint is a step of TorchTitan or OLMo-core, which no tracker names."""
    return TORCHTITAN_STEP.fullmatch(one.name) is not None


def _of_nemo(run: str, files: Files) -> list[RunCheckpoint]:
    names = set(listing(run))
    by_step: dict[int, RunCheckpoint] = {}
    for name in sorted(names, key=lambda name: (name.endswith(_NEMO_LAST), name)):
        directory = f"{run}/{name}"
        if name.endswith((_NEMO_UNFINISHED, _NEMO_AVERAGE)) or f"{name}{_NEMO_UNFINISHED}" in names:
            continue
        with contextlib.suppress(NoInput):
            if {provider_config.WEIGHTS, provider_config.CONTEXT} <= set(listing(directory)):
                step = _step_of_nemo(directory, name, files)
                by_step.setdefault(step, RunCheckpoint(step, directory, f"step-{step}"))
    return sorted(by_step.values())


def _step_of_nemo(directory: str, name: str, files: Files) -> int:
    """The step in the name, or else the one that is stored: names are the user's choice. Raises BadData where neither has it."""
    if match := _NEMO_STEP.fullmatch(name):
        return int(match[1])
    path = f"{directory}/{provider_config.WEIGHTS}/{COMMON}"
    content, _ = torch_archive.read(path, 0, files.size_bytes(path), files, COMMON)
    step = content.get("global_step") if isinstance(content, dict) else None
    if type(step) is not int or step < 0:
        raise BadData(f"{path}: has no global_step, and the name of the checkpoint no step=", "rename it to step=NUMBER")
    return step


def _tracked(run: str, names: list[str], files: Files) -> int:
    """The iteration that the tracker names; -1 without one, and while it is written, when it is empty or cut off."""
    if TRACKER not in names and train_state.TRACKER in names:
        try:
            return train_state.tracked_step(run, files)
        except BadData:
            return -1
    if TRACKER not in names or files.size_bytes(f"{run}/{TRACKER}") == 0:
        return -1
    iteration = tracked_iteration(run, files)
    return -1 if iteration is None else iteration


def _is_complete(one: RunCheckpoint, tracked: int, files: Files) -> bool:
    try:
        names = listing(one.directory)
        if olmo_core.recognise(names):
            return olmo_core.is_finished(names)
        recognised = formats.recognise(names)
        if recognised is None or (recognised == formats.MEGATRON_DIST.name and not torch_dist.is_finished(names)):
            return False
        if RECORD in names:
            return _has_all_files(one.directory, files)
        if train_state.FILE in names and provider_config.RUN_CONFIG not in names:
            return False
    except (NoInput, BadData):
        # It was deleted since it was listed, or is being copied.
        return False
    return _is_step(one) or one.iteration <= tracked


def _has_all_files(directory: str, files: Files) -> bool:
    path = f"{directory}/{RECORD}"
    sizes = RunRecord.parse(files.read(path, 0, files.size_bytes(path)), path).files
    if storage.is_remote(directory):
        stored_sizes = storage.sizes_below(directory)
        return all(stored_sizes.get(name) == size for name, size in sizes.items())
    return all(files.size_bytes(f"{directory}/{name}") == size for name, size in sizes.items())
