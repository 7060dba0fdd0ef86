"""State files: one process at a time.

The lock is on a file beside the state, because publishing the state replaces it. It vanishes with its process, however that ends.
"""

import contextlib
import os
from collections.abc import Iterator

from lt_shared.local_files import creating, lock, missing_directory_hint


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock on the state at `path`. Raises TryAgain when another process has it, CannotCreate without a directory."""
    lock_path = os.path.join(os.path.dirname(path) or ".", f".{os.path.basename(path)}.lock")
    with creating(path, missing_directory_hint(path)):
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)
