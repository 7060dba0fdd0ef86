"""Local outputs that a killed process leaves half-written and the next one resumes.

They grow as `.NAME.partial`, like the outputs of `local_files`, but are kept after an exception. The caller records how many
bytes are good; on resume, later bytes are truncated. A file that another user could have written is not resumed. A lock on the
partial file keeps a second writer out. If locks do not work (some NFS and Lustre mounts), two processes may write one partial
file. This is harmless as long as both write the same bytes at the same offsets; the later publisher finds the file gone.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import IO

from lt_shared.console import CannotCreate, IoFailure, TryAgain, note
from lt_shared.files import leftovers, ownership
from lt_shared.files.checksums import crc32_of_file
from lt_shared.files.local_files import (
    create_partial,
    creating,
    filling,
    is_at,
    lock,
    missing_directory_hint,
    open_own,
    partial_path,
    publish_filled,
    writing,
)


@contextlib.contextmanager
def resumable(name: str, kept_bytes: int = 0) -> Iterator[IO[bytes]]:
    """Yield a file that becomes `name` when the block ends without an exception, and otherwise stays partial.

    The file holds the first `kept_bytes` bytes that an earlier process left, and is positioned after them; with 0 it is empty.
    Raises as `storage.publish`.
    """
    with _opened(name, kept_bytes, "wb") as file:
        with filling(name):
            yield file
        publish_filled(file, name)


@contextlib.contextmanager
def spool(name: str, kept_bytes: int = 0) -> Iterator[IO[bytes]]:
    """Yield a file as `resumable` does, but for reading and writing, and delete it at the end of the block.

    Errors of a full disk are reported by the output that the file serves.
    """
    with _opened(name, kept_bytes, "r+b") as file:
        yield file
        os.unlink(partial_path(name))


def sync(file: IO[bytes]) -> None:
    """Sync the partial file."""
    file.flush()
    os.fsync(file.fileno())


def holds(name: str, size_bytes: int, crc32: int | None = None) -> bool:
    """Whether an earlier process left at least `size_bytes` of the output `name` in a file that no other user could change.

    With `crc32`, these bytes are read back, at the speed of the disk, and must have that checksum.
    """
    if size_bytes == 0:
        return True
    try:
        descriptor = open_own(partial_path(name), os.O_RDONLY, name)
    except (FileNotFoundError, CannotCreate):
        return False
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        is_trusted = ownership.reason_for_distrust(status, os.path.dirname(partial_path(name))) is None
        is_whole = is_trusted and status.st_size >= size_bytes
        return is_whole and (crc32 is None or crc32_of_file(file, size_bytes) == crc32)


def exists(name: str) -> bool:
    return os.path.lexists(partial_path(name))


def discard(name: str) -> None:
    """Delete the partial file of an output that will not be finished, unless another process is writing it."""
    with contextlib.suppress(FileNotFoundError, TryAgain, CannotCreate):
        descriptor = open_own(partial_path(name), os.O_RDWR, name)
        try:
            lock(descriptor, name)
            if is_at(descriptor, partial_path(name)):
                leftovers.remove(partial_path(name))
        finally:
            os.close(descriptor)


def withdraw(name: str) -> None:
    """Make a published file partial again: its process was killed before the files that belong to it were published."""
    with writing(name):
        os.chmod(name, 0o600, follow_symlinks=False)
        os.replace(name, partial_path(name))


@contextlib.contextmanager
def locked(path: str, name: str) -> Iterator[IO[bytes]]:
    """Open the file at `path`, unbuffered, for reading and writing; create it if it is missing. Lock it against other processes.

    A file that other users could write to is replaced by an empty one. The block may delete the file. Raises, naming the output
    `name`: TryAgain if another process has locked the file, CannotCreate if it cannot be created or belongs to another user.
    """
    while True:
        with creating(name, missing_directory_hint(path)):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                try:
                    descriptor = open_own(path, os.O_RDWR, name)
                except FileNotFoundError:
                    continue
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            lock(descriptor, name)
            if not is_at(descriptor, path):
                # The process that held the lock has deleted or replaced the file meanwhile.
                continue
            reason = ownership.reason_for_distrust(os.fstat(descriptor), os.path.dirname(path) or ".")
            if reason is not None:
                note(f"{path}: {reason}: not used")
            if reason is not None or leftovers.could_be_renamed(path, os.fstat(descriptor)):
                leftovers.remove(path)
                continue
            yield file
            return


@contextlib.contextmanager
def _opened(name: str, kept_bytes: int, mode: str) -> Iterator[IO[bytes]]:
    with creating(name, missing_directory_hint(name)):
        descriptor = _reopen(name, kept_bytes) if kept_bytes else create_partial(name)
    with open(descriptor, mode, buffering=1 << 20) as file:
        try:
            yield file
        except BaseException:
            # A buffered write that failed would be tried again on close and hide the first error.
            with contextlib.suppress(OSError):
                file.close()
            raise


def _reopen(name: str, kept_bytes: int) -> int:
    descriptor = open_own(partial_path(name), os.O_RDWR, name)
    try:
        lock(descriptor, name)
        reason = ownership.reason_for_distrust(os.fstat(descriptor), os.path.dirname(partial_path(name)))
        if reason is not None:
            raise CannotCreate(f"{partial_path(name)}: {reason}", "remove it, and run the command again")
        if os.fstat(descriptor).st_size < kept_bytes:
            raise IoFailure(f"{partial_path(name)}: shorter than the {kept_bytes} bytes that were written")
        os.ftruncate(descriptor, kept_bytes)
        os.lseek(descriptor, kept_bytes, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
