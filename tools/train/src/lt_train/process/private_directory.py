"""A directory for the files that processes of one run pass to each other on a node.

Whoever made it may be killed. It is locked as long as its maker lives, and the next one to be made deletes those that are not.
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
# One that was made just now may be locked in a moment.
YOUNG_SECONDS = 60.0


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """Its path, below the system's temporary directory; at the end it is deleted."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        _delete_if_abandoned(path)
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, _opened(name) as descriptor:
        # Where there are no locks, none of them is deleted.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield Path(name)


def _delete_if_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError):
        status = path.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if is_own and time.time() - status.st_mtime > YOUNG_SECONDS:
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
