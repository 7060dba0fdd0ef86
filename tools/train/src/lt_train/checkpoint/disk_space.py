"""Estimate the size of a checkpoint, and make room on the disk before a save begins.

A parameter takes 14 bytes if it is trained in 16 bits: 2 for the weight, 4 for the float32 copy, and 8 for Adam's moments. In 32
bits it takes 12, because there is no copy. The 2 bytes of a bfloat16 weight cannot be saved by pointing into the bytes of the
float32 copy: the weight is the copy rounded to the nearest, and for half of all weights the copy's high 16 bits are another
number. Megatron's loader and the converters read the bytes that the index points to, and do not round.
"""

import shutil
import threading
from pathlib import Path

from lt_shared.console import ToolError
from lt_shared.contracts import checkpoint_layout
from lt_shared.files import leftovers
from lt_train.process.run_files import is_full

# Room for metadata, checksums and random states, and for filesystems that count whole blocks.
MORE_BYTES, MORE_SHARE = 2**20, 0.01


def needed_bytes(planned_bytes: int, last: Path | None) -> int:
    """Estimate the size of the next checkpoint from the `last` checkpoint of this run, or else from `planned_bytes`."""
    size = directory_bytes(last) if last is not None else planned_bytes
    return int(size * (1 + MORE_SHARE)) + MORE_BYTES


def directory_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def free_bytes(directory: Path) -> int:
    return shutil.disk_usage(directory).free


def describe_shortage(needed_bytes: int, free: int) -> str:
    return f"it needs {needed_bytes / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free{'' if free < needed_bytes else ' now'}"


def make_room(run: Path, required_bytes: int, next_iteration: int, keep_last: int | None, keep_every: int | None) -> int:
    """Delete checkpoints, oldest first, that expire with `next_iteration`, until `required_bytes` are free.

    The newest complete checkpoint always stays: the run resumes from it until the next one is complete. Returns the free bytes.
    """
    path_by_iteration = {checkpoint_layout.iteration_of(path) or 0: path for path in checkpoint_layout.checkpoints(run)}
    complete = sorted(iteration for iteration, path in path_by_iteration.items() if checkpoint_layout.damage(path) is None)
    doomed = checkpoint_layout.expired([*complete, next_iteration], keep_last, keep_every)
    for iteration in doomed:
        if free_bytes(run) >= required_bytes:
            break
        if iteration != complete[-1]:
            _delete(path_by_iteration[iteration])
    return free_bytes(run)


def _delete(checkpoint: Path) -> None:
    """Rename the checkpoint before deleting it, so that a kill leaves nothing that looks like a checkpoint."""
    hidden = checkpoint.with_name(f".{checkpoint.name}.deleted")
    leftovers.hide(checkpoint, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def delete_expired(run: Path, newest: int, keep_last: int | None, keep_every: int | None) -> None:
    """Delete checkpoints that `keep_last` and `keep_every` do not keep. The `newest`, complete checkpoint always stays.

    Renaming hides them at once; a thread deletes the files while training continues.
    """
    path_by_iteration = {checkpoint_layout.iteration_of(path) or 0: path for path in checkpoint_layout.checkpoints(run)}
    complete = [iteration for iteration, path in path_by_iteration.items() if checkpoint_layout.damage(path) is None]
    if newest not in complete:
        return
    for iteration in checkpoint_layout.expired(complete, keep_last, keep_every):
        doomed = run / f".{path_by_iteration[iteration].name}.deleted"
        leftovers.hide(path_by_iteration[iteration], doomed)
        threading.Thread(target=shutil.rmtree, args=(doomed,), kwargs={"ignore_errors": True}).start()


def write_tracker(run: Path, iteration: int) -> str | None:
    """Name the newest checkpoint in the tracker for Megatron's loader. Return a warning if the disk is full.

    lt-train resumes from the newest checkpoint without the tracker.
    """
    try:
        checkpoint_layout.write_tracker(run, iteration)
    except ToolError as error:
        if not is_full(error):
            raise
        return f"{run / checkpoint_layout.TRACKER}: no space left on device; it does not name iteration {iteration}"
    return None
