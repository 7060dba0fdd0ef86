"""Remove the hidden files and directories that a killed process has left, and nothing else.

An unfinished output is private: its mode is 0600 or 0700. In a directory whose entries other users may rename, another user can
give any file the hidden name that the next command cleans up. There, a file that is not private is moved aside and named, and
only a private file is deleted.
"""

import contextlib
import os
import shutil
import stat

from lt_shared.console import warn
from lt_shared.files import ownership

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def remove(path: str | os.PathLike[str]) -> None:
    """Delete the leftover at `path`, or move it aside if another user could have put it there. Links are not followed.

    Errors within a directory are ignored, and the next command removes the remains. Raises OSError for a file.
    """
    name = os.fspath(path)
    try:
        status = os.lstat(name)
    except FileNotFoundError:
        return
    if could_be_renamed(name, status):
        directory, _, base = name.rpartition("/")
        aside = os.path.join(directory or ".", f"{base.lstrip('.')}.kept-{os.urandom(4).hex()}")
        os.rename(name, aside)
        warn(f"{name}: others may rename files here, and it is no unfinished output by its mode: it is now {aside}")
    elif stat.S_ISDIR(status.st_mode):
        shutil.rmtree(name, ignore_errors=True)
    else:
        os.unlink(name)


def hide(path: str | os.PathLike[str], hidden: str | os.PathLike[str]) -> None:
    """Rename a directory that will be deleted to its hidden name, and make it private, so that `remove` deletes it."""
    remove(hidden)
    os.rename(path, hidden)
    if not os.path.islink(hidden):
        with contextlib.suppress(OSError):
            os.chmod(hidden, 0o700)


def could_be_renamed(path: str | os.PathLike[str], status: os.stat_result) -> bool:
    """Whether another user could have renamed this user's file to `path`, and it is not private as a leftover is."""
    if stat.S_ISLNK(status.st_mode) or not status.st_mode & _OTHERS or not ownership.can_be_renamed(path):
        return False
    return not ownership.modes_are_not_kept(os.path.dirname(path) or ".")
