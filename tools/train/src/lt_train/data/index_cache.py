"""Directories that are made once and used by many: sample indices, copies of remote datasets.

Several nodes, and several jobs, may want the same one on a shared filesystem at the same moment. A lock lets one of them work
and the others wait. Correctness does not rest on it, since some mounts have no locks: each maker fills a directory under a name
of its own, which becomes visible by one rename, and the first one wins. A name stands for its content, so what is there is never
replaced.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from lt_shared import storage
from lt_shared.console import note
from lt_shared.local_files import creating, filling, writing

WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


def make_once(directory: Path, name: str, make: Callable[[Path], None]) -> Path:
    """`directory/name`, filled by `make` when it is not there. `make` gets an empty directory and syncs what it writes.

    Raises CannotCreate and IoFailure, and whatever `make` raises; then nothing is left.
    """
    target = directory / name
    if target.is_dir():
        return target
    with creating(str(target)):
        directory.mkdir(parents=True, exist_ok=True)
    with _lock(directory / f".{name}.lock") as alone:
        if not target.is_dir():
            _make(target, make, alone)
    return target


def _make(target: Path, make: Callable[[Path], None], alone: bool) -> None:
    prefix = f".{target.name}.partial-"
    if alone:
        for abandoned in target.parent.glob(f"{prefix}*"):
            shutil.rmtree(abandoned, ignore_errors=True)
    own = target.parent / f"{prefix}{socket.gethostname()}-{os.getpid()}"
    shutil.rmtree(own, ignore_errors=True)
    try:
        with creating(str(target)):
            own.mkdir()
        with filling(str(target)):
            make(own)
        with writing(str(target)):
            storage.sync_directory(own)
            _publish(own, target)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _publish(own: Path, target: Path) -> None:
    try:
        os.rename(own, target)
    except OSError:
        if not target.is_dir():
            raise
    storage.sync_directory(target.parent)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Wait for the lock at `path`; yields whether there is one."""
    with creating(str(path)):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield _locked(descriptor, path)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note(f"{path.parent}: waiting for another process that makes {path.name[1:-5]}")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno in WITHOUT_LOCKS:
            return False
        raise
    return True
