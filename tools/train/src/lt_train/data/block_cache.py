"""Cache blocks of remote files on a local disk. A node's processes share the cache; the least recently used blocks go first.

A block is a separate file, `DATASET/blocks/NUMBER`, that appears by a rename when it is complete and on disk. The process that
fetches a block holds a lock on its partial file: other processes that need the block wait, and read the fetched file. After a
kill the next process begins anew. A process with an open block can read it to the end even if the block is deleted meanwhile.
The processes share only the sum of the sizes, in a file under a lock. The sum counts partial files from their creation, and is
computed again when it reaches the limit.

After a kill, the sum may be too large, never too small. On filesystems without locks a block may be fetched twice, and blocks
that are fetched at the same moment may exceed the limit.
"""

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lt_shared.console import CannotCreate, warn
from lt_shared.files import ownership
from lt_shared.files.local_files import creating, is_at, read_at, write_at
from lt_train.data.index_cache import WITHOUT_LOCKS

BLOCKS = "blocks"
PARTIAL = ".partial"
SUM_DIGITS = 20
# One part in this many of the limit is deleted at once, so that blocks, 3 microseconds each, are seldom listed.
DELETED_SHARE = 16
# A block's time of use is updated at most this often, because an update is a write to the disk.
USE_SECONDS = 60
OUT_OF_USE_SECONDS = 60


class BlockCache:
    """The blocks below `directory`, at most `limit_bytes` in total; other users' blocks are not counted."""

    def __init__(self, directory: Path, limit_bytes: int):
        self.directory = directory
        self.limit_bytes = limit_bytes
        self._sum_path = directory / f".blocks-{os.geteuid()}"
        self._out_of_use_until = 0.0
        self._has_warned = threading.Event()

    def open_block(self, path: Path, size_bytes: int) -> int | None:
        """Open the block at `path`. Returns its descriptor, which the caller closes; None if the block does not exist."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        status = os.fstat(descriptor)
        if status.st_size != size_bytes:
            # Another program has changed the block. Delete it, because it would be fetched again at every use.
            os.close(descriptor)
            path.unlink(missing_ok=True)
            return None
        if time.time() - status.st_mtime > USE_SECONDS:
            with contextlib.suppress(OSError):
                os.utime(descriptor)
        return descriptor

    def fetch_block(self, path: Path, size_bytes: int, fetch: Callable[[], bytes]) -> int | None:
        """Open the block at `path`; if it does not exist, write the bytes from `fetch` to it first.

        Returns None if the disk is full or fails. The disk is then not tried again for a while, because the store has the bytes,
        too. Raises the errors of `fetch`.
        """
        if time.monotonic() < self._out_of_use_until:
            return None
        try:
            return self._fetch_block(path, size_bytes, fetch)
        except OSError as error:
            self._out_of_use_until = time.monotonic() + OUT_OF_USE_SECONDS
            self._say(f"{str(error.strerror).lower()}: make room there, or choose another --object-storage-cache-path")
            return None

    def count(self) -> int:
        """Count the blocks' bytes. Deletes blocks beyond the limit, and partial files of killed processes.

        Raises CannotCreate.
        """
        with creating(str(self.directory)):
            self.directory.mkdir(parents=True, exist_ok=True)
            with self._sum() as file:
                total = self._trim(self.limit_bytes)
                _write_sum(file, total)
        return total

    def _fetch_block(self, path: Path, size_bytes: int, fetch: Callable[[], bytes]) -> int | None:
        partial = path.with_name(f".{path.name}{PARTIAL}")
        lock = _lock_partial(partial)
        try:
            descriptor = self.open_block(path, size_bytes)
            if descriptor is not None:
                return descriptor
            if not self._make_room(lock, size_bytes):
                self._say(f"no room for a block of {size_bytes:,} bytes: raise --object-storage-cache-gib")
                return None
            write_at(lock, fetch(), 0)
            os.fsync(lock)
            if is_at(lock, partial):
                os.rename(partial, path)
            return os.dup(lock)
        finally:
            if is_at(lock, partial):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(partial)
            # The duplicate shares the lock, and other processes wait for the lock.
            _unlock(lock)
            os.close(lock)

    def _say(self, what: str) -> None:
        if not self._has_warned.is_set():
            self._has_warned.set()
            warn(f"{self.directory}: {what}; until then the store is read without this cache")

    def _make_room(self, lock: int, size_bytes: int) -> bool:
        """Give the partial file its size, which counts from now on. False if the limit is too small."""
        with self._sum() as file:
            total = int(read_at(file, SUM_DIGITS, 0) or b"0")
            if total + size_bytes > self.limit_bytes:
                total = self._trim(self.limit_bytes - size_bytes)
            fits = total + size_bytes <= self.limit_bytes
            if fits:
                os.ftruncate(lock, size_bytes)
                total += size_bytes
            _write_sum(file, total)
        return fits

    def _trim(self, wanted_bytes: int) -> int:
        """Delete the oldest blocks if the blocks have more than `wanted_bytes`. Return the size of the remaining blocks."""
        # A block may get its final name during the listing: it counts once, under either name.
        cached_files, filling_bytes = {}, 0
        for folder in self._folders():
            for name in os.listdir(folder):
                number = name.removeprefix(".").removesuffix(PARTIAL)
                if name.endswith(PARTIAL) and (size := _partial_bytes(os.path.join(folder, name))):
                    filling_bytes += size
                elif number.isdigit():
                    path = os.path.join(folder, number)
                    with contextlib.suppress(FileNotFoundError):
                        status = os.lstat(path)
                        cached_files[path] = status.st_mtime_ns, status.st_size
        total = filling_bytes + sum(size for _, size in cached_files.values())
        if total <= wanted_bytes:
            return total
        for path, (_, size) in sorted(cached_files.items(), key=lambda entry: entry[1]):
            if total <= wanted_bytes - self.limit_bytes // DELETED_SHARE:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            total -= size
        return total

    def _folders(self) -> Iterator[Path]:
        """Yield the directories of blocks that this user has made, and that no other user could have changed."""
        for dataset in self.directory.glob("dataset-*"):
            folder = dataset / BLOCKS
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if not any(
                    ownership.reason_for_distrust(os.lstat(directory), directory.parent) for directory in (dataset, folder)
                ):
                    yield folder

    @contextlib.contextmanager
    def _sum(self) -> Iterator[int]:
        """Open and lock the file with the sum of the sizes."""
        file = os.open(self._sum_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            if ownership.reason_for_distrust(os.fstat(file), self.directory) is not None:
                raise CannotCreate(f"{self._sum_path}: others can write to it", "choose another --object-storage-cache-path")
            _lock(file)
            yield file
        finally:
            os.close(file)


def _lock_partial(partial: Path) -> int:
    """Create and lock a partial file. Waits for the process that holds its lock. Returns the descriptor."""
    while True:
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            has_locks = _lock(descriptor)
            if is_at(descriptor, partial):
                if not has_locks or os.fstat(descriptor).st_size == 0:
                    return descriptor
                # A killed process has left this file with a part of its bytes. A new file's size is counted again.
                os.unlink(partial)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Wait for the lock. False if the filesystem has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno in WITHOUT_LOCKS:
            return False
        raise
    return True


def _partial_bytes(path: str) -> int:
    """Return the size of a partial file that a process fills. Delete a file that no process fills, and return 0."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_at(descriptor, path):
            os.unlink(path)
        return 0
    except OSError:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _unlock(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _write_sum(file: int, total: int) -> None:
    write_at(file, f"{total:0{SUM_DIGITS}d}".encode(), 0)
