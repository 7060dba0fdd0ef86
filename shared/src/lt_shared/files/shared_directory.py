"""A directory that several processes fill together, on one node or many; the last process publishes it.

Like the outputs of `local_files`, it grows as `.NAME.partial`. Each process holds a shared lock on the directory, so that a
process that would write the output alone stays out. Which process publishes it is for the callers to settle.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from lt_shared.console import CannotCreate
from lt_shared.files import ownership
from lt_shared.files.local_files import (
    PartialDirectory,
    check_replaceable,
    check_still_ours,
    create_partial_directory,
    creating,
    filling,
    is_at,
    partial_path,
    publish_prepared_directory,
    writing,
)


@contextlib.contextmanager
def shared_directory(path: str | os.PathLike[str]) -> Iterator[PartialDirectory]:
    """Yield the partial directory of `path` to one of several processes; its files are kept.

    Raises: TryAgain while a process writes the output alone, CannotCreate if the directory cannot be created or if another user
    could have written there.
    """
    target = Path(os.path.abspath(path))
    partial = Path(partial_path(str(target)))
    with creating(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = create_partial_directory(partial, str(target), fcntl.LOCK_SH)
    try:
        status = os.fstat(descriptor)
        # A process that was killed just before the rename leaves the mode of the published directory.
        reason = ownership.writable_by_others(status, target.parent, 0o666)
        if reason is not None:
            raise CannotCreate(f"{target}: {partial} {reason}", "remove it, and run the command again")
        with filling(str(target)):
            yield PartialDirectory(partial, descriptor)
    finally:
        os.close(descriptor)


def is_published(directory: PartialDirectory) -> bool:
    """Whether the directory has left its place: it was published, or removed."""
    return not is_at(directory.descriptor, directory.path)


def publish_shared(directory: PartialDirectory, path: str | os.PathLike[str], replace: bool = False) -> None:
    """Sync the directory and rename it to `path`, as `publish_directory` does. The caller keeps other processes from doing so.

    Raises: CannotCreate for an existing `path`, unless it is empty or `replace` is set, IoFailure if the disk fails.
    """
    target = Path(os.path.abspath(path))
    check_replaceable(target, replace)
    with writing(str(target)):
        check_still_ours(directory.descriptor, directory.path, str(target))
        publish_prepared_directory(directory.path, target)
        check_still_ours(directory.descriptor, target, str(target))
