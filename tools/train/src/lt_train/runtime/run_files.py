"""The files of a run's directory under names that everybody knows: logs, metrics, the lock.

Another user may have made the directory, or may write to it, and put a link there under such a name: it is not followed, nor is
one with a second name, which could be anywhere.
"""

import io
import os
import shutil
import stat
from pathlib import Path
from typing import IO

from lt_shared.console import CannotCreate


def descriptor(path: Path, flags: int) -> int:
    """An open file descriptor of a file that is made when there is none. Raises CannotCreate."""
    return _opened(path, flags | os.O_CREAT)


def _opened(path: Path, flags: int) -> int:
    try:
        opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = "is a symbolic link" if path.is_symlink() else str(error.strerror)
        raise CannotCreate(f"{path}: {reason}") from None
    status = os.fstat(opened)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(opened)
        raise CannotCreate(f"{path}: is not a file of its own, it has another name elsewhere or is no file", "delete it")
    return opened


def appended(path: Path) -> IO[str]:
    """A text file to whose end lines are written, one at a time. Raises CannotCreate."""
    return os.fdopen(descriptor(path, os.O_WRONLY | os.O_APPEND), "a", buffering=1)


def renewed(path: Path) -> io.TextIOWrapper:
    """A new text file, instead of one that an attempt before has left. Raises OSError."""
    path.unlink(missing_ok=True)
    return path.open("x")


def content(path: Path) -> bytes:
    """All of a file. Raises FileNotFoundError and CannotCreate."""
    with os.fdopen(_opened(path, os.O_RDONLY), "rb") as file:
        return file.read()


def abandoned(run: Path) -> list[Path]:
    """What killed attempts have left of checkpoints, unless an attempt is under way."""
    return [*run.glob(".iter_*.partial*"), *run.glob(".iter_*.deleted")]


def delete_abandoned(run: Path) -> None:
    """Delete that; for the holder of the lock."""
    for directory in abandoned(run):
        shutil.rmtree(directory, ignore_errors=True)
