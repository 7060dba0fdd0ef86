"""Make directories once for many processes: sample indices, copies of remote datasets.

Several nodes, and several jobs, may need the same directory on a shared filesystem at the same moment. A lock lets one process
work while the others wait. Correctness does not depend on the lock, because some mounts have no locks: each maker fills a
directory with a unique name, which becomes visible by one rename, and the first rename wins. A name stands for its content, so
an existing directory is never replaced.

This holds for directories that this user has made. If several users share the parent directory, a directory that another user has
made, or could have changed, is not used: each user then has a private directory.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lt_shared.console import BadData, CannotCreate, note, warn
from lt_shared.files import leftovers, lock_holders, ownership, storage
from lt_shared.files.local_files import creating, filling, set_mode, writing

# This file in a directory that other users may rename shows whether two directories were exchanged.
NAME = ".name"
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
# Longer than the largest index takes. Correctness does not need the lock: a second process makes the same once more.
LOCK_SECONDS, POLL_SECONDS = 1800.0, 0.1


def make_once(directory: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return `directory/name`, filled by `make` if it does not exist; `name.UID` if other users could have filled `name`.

    `make` gets an empty directory and syncs its files. Raises CannotCreate and IoFailure, and the errors of `make`; then no file
    remains.
    """
    target = location(directory, name)
    if target.name != name:
        warn(f"{directory / name} {_reason_for_distrust(directory / name, name)}: not used, {target.name} is made instead")
    if target.is_dir():
        return target
    with creating(str(target)):
        directory.mkdir(parents=True, exist_ok=True)
    with _lock(directory / f".{target.name}.lock") as alone:
        if not target.is_dir():
            _make(target, name, make, alone)
    return target


def location(directory: Path, name: str) -> Path:
    """Return the path of the directory that `make_once` makes for `name`.

    Raises CannotCreate if other users could have filled both places, or have put a link in place of `directory`.
    """
    try:
        ownership.check_link(directory)
    except BadData as error:
        raise CannotCreate(str(error), "choose another directory: --data-cache-path") from None
    except OSError:
        # The directory does not exist yet.
        return directory / name
    target = directory / name
    if _reason_for_distrust(target, name) is not None:
        target = directory / f"{name}.{os.geteuid()}"
        reason = _reason_for_distrust(target, name)
        if reason is not None:
            raise CannotCreate(f"{target} {reason}", "choose a directory where nobody else can write: --data-cache-path")
    return target


def _reason_for_distrust(target: Path, name: str) -> str | None:
    try:
        reason = ownership.reason_for_distrust(os.lstat(target), target.parent)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if reason is None and ownership.can_be_renamed(target):
        return None if _name_in(target) == name else "may have had another name"
    return reason


def _name_in(directory: Path) -> str | None:
    try:
        return (directory / NAME).read_text()
    except (OSError, ValueError):
        return None


def _make(target: Path, name: str, make: Callable[[Path], None], alone: bool) -> None:
    prefix = f".{target.name}.partial-"
    if alone:
        for abandoned in target.parent.glob(f"{prefix}*"):
            leftovers.remove(abandoned)
    staging = target.parent / f"{prefix}{socket.gethostname()}-{os.getpid()}"
    shutil.rmtree(staging, ignore_errors=True)
    try:
        with creating(str(target)):
            staging.mkdir(mode=0o700)
        if ownership.can_be_renamed(target):
            storage.write_bytes(staging / NAME, name.encode())
        with filling(str(target)):
            make(staging)
        with writing(str(target)):
            _make_readable(staging)
            storage.sync_directory(staging)
            _publish(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _make_readable(directory: Path) -> None:
    """Let other users read as far as the umask allows, and write nothing, even if the umask lets a group write."""
    for path in directory.rglob("*"):
        path.chmod(path.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        set_mode(descriptor, 0o755)
    finally:
        os.close(descriptor)


def _publish(staging: Path, target: Path) -> None:
    try:
        os.rename(staging, target)
    except OSError:
        if not target.is_dir():
            raise
    storage.sync_directory(target.parent)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Wait for the lock at `path`. Yield whether it is held. Do not wait for a lock that another user can hold."""
    with creating(str(path)):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.ELOOP):
                raise
            descriptor = None
    if descriptor is None:
        yield False
        return
    try:
        status = os.fstat(descriptor)
        # Who may read a file can hold its lock: in a directory that is not sticky, others can put a file of this user here.
        is_private = not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or ownership.modes_are_not_kept(path.parent)
        is_ours = is_private and ownership.reason_for_distrust(status, path.parent) is None
        yield is_ours and _wait_for_lock(descriptor, path)
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int, path: Path) -> bool:
    """Return whether this process gets the lock: not after LOCK_SECONDS, because a process that hangs may hold it."""
    deadline, is_told = time.monotonic() + LOCK_SECONDS, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in WITHOUT_LOCKS:
                return False
            raise
        holder = lock_holders.describe(descriptor)
        if time.monotonic() >= deadline:
            warn(f"{path.parent}: {holder} has held the lock of {path.name[1:-5]} for {LOCK_SECONDS:.0f} s: made here as well")
            return False
        if not is_told:
            note(f"{path.parent}: waiting for {holder}, which makes {path.name[1:-5]}")
            is_told = True
        time.sleep(POLL_SECONDS)
