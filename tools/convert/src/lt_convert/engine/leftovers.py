"""Hidden files that a run leaves when it is killed after its result is in place, in the last deletions."""

import contextlib
import os
import shutil
from pathlib import Path

from lt_convert.engine.journal import JOURNAL
from lt_shared.files import ownership, storage
from lt_shared.files.local_files import partial_path


def remove(destination: str) -> None:
    """Delete the journal in a finished result and, beside it, the one that it has replaced.

    Not while a partial result is there: its process may be about to put the replaced one back.
    """
    if storage.is_remote(destination):
        if storage.exists(f"{destination}/{JOURNAL}"):
            storage.remove(f"{destination}/{JOURNAL}")
        return
    path = Path(destination)
    # Where the result belongs to root and cannot be changed, there is nothing to tidy.
    with contextlib.suppress(OSError):
        storage.remove(path / JOURNAL)
    replaced = path.parent / f".{path.name}.replaced"
    with contextlib.suppress(OSError):
        is_own = replaced.is_dir() and ownership.belongs_to_other(os.lstat(replaced), path.parent) is None
        if is_own and not replaced.is_symlink() and not os.path.lexists(partial_path(destination)):
            shutil.rmtree(replaced)
