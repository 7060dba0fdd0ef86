"""State files: one process at a time.

The lock is on a file beside the state, because publishing the state replaces it. It vanishes with its process, however that ends.
"""

import contextlib
import os
from collections.abc import Iterator

from lt_shared.files import resumable_files


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock on the state at `path`.

    Raises TryAgain when another process has it, CannotCreate without a directory or when another user has made the lock's file.
    """
    lock_path = os.path.join(os.path.dirname(path) or ".", f".{os.path.basename(path)}.lock")
    with resumable_files.locked(lock_path, path):
        yield
