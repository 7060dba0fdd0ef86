"""Make a directory for files that a run's processes pass to each other on a node.

The process that makes the directory may be killed. So it holds a lock while it lives, and the next run deletes
unlocked directories.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "lt-train-ranks-"
# A directory younger than this may not be locked yet.
YOUNG_SECONDS = 60.0


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """Yield a directory below the system's temporary directory. Delete it at the end."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        _delete_if_abandoned(path)
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, _opened(name) as descriptor:
        # On a filesystem without locks, no directory is deleted.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield Path(name)


def _delete_if_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError):
        status = path.lstat()
        is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if is_ours and time.time() - status.st_mtime > YOUNG_SECONDS:
            with _opened(path) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _opened(path: str | Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
