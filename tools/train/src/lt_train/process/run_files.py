"""The files of a run's directory under names that everybody knows: logs, metrics, the lock.

Another user may have made the directory, or may write to it, and put a link there under such a name: it is not followed, nor is
one with a second name, which could be anywhere.
"""

import errno
import io
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any, Self

from lt_shared.console import CannotCreate, IoFailure

# What a write says that had no room on the disk, in the quota, or below the limit of a file.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# torch's archives do not say what stopped them.
FULL_WORDS = ("No space left on device", "Disk quota exceeded", "File too large", "unexpected pos ", "PytorchStreamWriter failed")


def is_full(error: BaseException | None) -> bool:
    """Whether a write failed because there was no room for it."""
    while error is not None:
        if getattr(error, "errno", None) in FULL or any(word in str(error) for word in FULL_WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


class AppendedLines:
    """A text file that every attempt of a run adds lines to. A context.

    What an attempt has left of a line, when it was killed or the disk was full, stays a line of its own: the next one begins on a
    new line. `lost` counts the lines for which there was no room since the last one that was written.
    """

    def __init__(self, path: Path):
        self.path = path
        self.lost = 0
        self._descriptor = descriptor(path, os.O_RDWR | os.O_APPEND)
        size_bytes = os.fstat(self._descriptor).st_size
        self._is_torn = size_bytes > 0 and os.pread(self._descriptor, 1, size_bytes - 1) != b"\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            os.close(self._descriptor)
        except OSError as problem:
            # Some filesystems find out only here that the disk is full.
            if problem.errno not in FULL:
                raise

    def write(self, lines: str) -> bool:
        """Add what ends with a line break. False when the disk is full: whoever reads passes over what is there of it. Raises
        IoFailure."""
        content = b"\n" * self._is_torn + lines.encode(errors="surrogateescape")
        written = 0
        try:
            while written < len(content):
                written += os.write(self._descriptor, content[written:])
        except OSError as error:
            if error.errno not in FULL:
                raise IoFailure(f"{self.path}: {error.strerror}") from error
            self._is_torn = content[:written][-1:] != b"\n" if written else self._is_torn
            self.lost += 1
            return False
        self._is_torn, self.lost = False, 0
        return True

    def sync(self) -> None:
        """On return all is on the disk."""
        os.fsync(self._descriptor)


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


def renewed(path: Path) -> io.TextIOWrapper:
    """A new text file, instead of one that an attempt before has left. Raises OSError."""
    path.unlink(missing_ok=True)
    return path.open("x")


def content(path: Path) -> bytes:
    """All of a file. Raises FileNotFoundError and CannotCreate."""
    with os.fdopen(_opened(path, os.O_RDONLY), "rb") as file:
        return file.read()


def record(line: str | bytes) -> dict[str, Any]:
    """The JSON object in a line; empty for what is none, such as a line that was cut off."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def abandoned(run: Path) -> list[Path]:
    """What killed attempts have left of checkpoints, unless an attempt is under way."""
    return [*run.glob(".iter_*.partial*"), *run.glob(".iter_*.deleted")]


def delete_abandoned(run: Path) -> None:
    """Delete that; for the holder of the lock."""
    for directory in abandoned(run):
        shutil.rmtree(directory, ignore_errors=True)
