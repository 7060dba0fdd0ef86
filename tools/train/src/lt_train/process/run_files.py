"""Open the files of a run's directory that have fixed names: logs, metrics, the lock.

Another user may have made the directory, or may write to it, and may put a link under such a name. Links are not followed, and
files with a second hard link, which could be anywhere, are refused.
"""

import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any, Self

from lt_shared.console import CannotCreate, IoFailure
from lt_shared.files import leftovers

# Errors of a write that exceeds the disk, the quota, or the file size limit.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# torch's archive writer does not pass on the errno, and may say only that a position is wrong.
FULL_WORDS = ("No space left on device", "Disk quota exceeded", "File too large", "unexpected pos ", "PytorchStreamWriter failed")


def is_full(error: BaseException | None) -> bool:
    """Whether a write failed because there was no room for it."""
    while error is not None:
        if getattr(error, "errno", None) in FULL or any(word in str(error) for word in FULL_WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


class AppendedLines:
    """A context that appends lines to a text file, as every attempt of a run does.

    If an attempt was killed or the disk was full, an incomplete line remains; the next attempt begins on a new line. `lost`
    counts the lines that found no room since the last written line.
    """

    def __init__(self, path: Path):
        self.path = path
        self.lost = 0
        self._descriptor = open_descriptor(path, os.O_RDWR | os.O_APPEND)
        size_bytes = os.fstat(self._descriptor).st_size
        self._is_torn = size_bytes > 0 and os.pread(self._descriptor, 1, size_bytes - 1) != b"\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            os.close(self._descriptor)
        except OSError as problem:
            # Some filesystems report a full disk only on close.
            if problem.errno not in FULL:
                raise

    def write(self, lines: str) -> bool:
        """Append `lines`, which end with a line break. Return False if the disk is full: readers skip the incomplete line.

        Raise IoFailure for other errors.
        """
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
        """Sync the file to the disk."""
        os.fsync(self._descriptor)


def open_descriptor(path: Path, flags: int) -> int:
    """Open a file, create it if it is missing, and return the descriptor. Raise CannotCreate."""
    return _open_checked(path, flags | os.O_CREAT)


def _open_checked(path: Path, flags: int) -> int:
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


def open_new(path: Path) -> io.TextIOWrapper:
    """Open a new text file in place of an earlier attempt's file. Raise OSError."""
    path.unlink(missing_ok=True)
    return path.open("x")


def read_content(path: Path) -> bytes:
    """Read a whole file. Raise FileNotFoundError and CannotCreate."""
    with os.fdopen(_open_checked(path, os.O_RDONLY), "rb") as file:
        return file.read()


def parse_record(line: str | bytes) -> dict[str, Any]:
    """Parse the JSON object in a line. Return an empty dict for other lines, such as an incomplete line."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def find_abandoned(run: Path) -> list[Path]:
    """List the partial checkpoints of killed attempts, unless an attempt is running."""
    return [*run.glob(".iter_*.partial*"), *run.glob(".iter_*.deleted")]


def delete_abandoned(run: Path) -> None:
    """Delete the partial checkpoints of killed attempts. The caller holds the lock."""
    for directory in find_abandoned(run):
        leftovers.remove(directory)
