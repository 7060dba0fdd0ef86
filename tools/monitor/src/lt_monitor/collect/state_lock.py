"""Lock a state file for one process.

The lock is on a separate file in the same directory, because publishing the state replaces the state file. The kernel releases
the lock when its process ends, however it ends.
"""

import contextlib
import os
from collections.abc import Iterator

from lt_shared.files import resumable_files


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock on the state at `path`.

    Raises TryAgain when another process holds it; CannotCreate if the directory is missing or the lock file is another user's.
    """
    lock_path = os.path.join(os.path.dirname(path) or ".", f".{os.path.basename(path)}.lock")
    with resumable_files.locked(lock_path, path):
        yield
