"""Blocks of remote files on a local disk: bounded, shared by the processes of a node; the least recently used blocks go first.

A block is a separate file, `DATASET/blocks/NUMBER`, that appears by a rename when it is complete and on disk. The process that
fetches a block holds a lock on its partial file: other processes that need the block wait, and read the fetched file; after a
kill the next process begins anew. A process that has a block open reads its bytes to the end even if the block is deleted
meanwhile. Nothing is kept in memory, so processes only share the sum of the sizes: a file under a lock has it. The sum counts
partial files from their creation, and is computed again when it reaches the limit.

A kill leaves the sum too large, never too small. On filesystems without locks a block may be fetched twice, and the limit be
exceeded by the blocks that are fetched at the same moment.
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
# The share of the limit that is deleted at once: listing takes 3 microseconds per block, and so is seldom done.
DELETED_SHARE = 16
# A block's time of use is written down as often: each costs the disk a write.
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

    def found(self, path: Path, size_bytes: int) -> int | None:
        """A descriptor of the block at `path`; None when it is not there. The caller closes it."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        status = os.fstat(descriptor)
        if status.st_size != size_bytes:
            # Not by this program's doing: it would be fetched again and again.
            os.close(descriptor)
            path.unlink(missing_ok=True)
            return None
        if time.time() - status.st_mtime > USE_SECONDS:
            with contextlib.suppress(OSError):
                os.utime(descriptor)
        return descriptor

    def fetched(self, path: Path, size_bytes: int, fetch: Callable[[], bytes]) -> int | None:
        """As `found`, with what `fetch` gives where it was not there; None where it cannot be kept. Raises what `fetch` raises.

        A disk that is full, or fails, is not tried again for a while: the store is still there.
        """
        if time.monotonic() < self._out_of_use_until:
            return None
        try:
            return self._fetched(path, size_bytes, fetch)
        except OSError as error:
            self._out_of_use_until = time.monotonic() + OUT_OF_USE_SECONDS
            self._say(f"{str(error.strerror).lower()}: make room there, or choose another --object-storage-cache-path")
            return None

    def count(self) -> int:
        """Bytes that the blocks have, counted anew; deletes what exceeds the limit, and what kills have left.

        Raises CannotCreate.
        """
        with creating(str(self.directory)):
            self.directory.mkdir(parents=True, exist_ok=True)
            with self._sum() as file:
                total = self._trimmed(self.limit_bytes)
                _write_sum(file, total)
        return total

    def _fetched(self, path: Path, size_bytes: int, fetch: Callable[[], bytes]) -> int | None:
        partial = path.with_name(f".{path.name}{PARTIAL}")
        lock = _locked_partial(partial)
        try:
            descriptor = self.found(path, size_bytes)
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
            # The duplicate has the same lock, and others wait for it.
            _unlock(lock)
            os.close(lock)

    def _say(self, what: str) -> None:
        if not self._has_warned.is_set():
            self._has_warned.set()
            warn(f"{self.directory}: {what}; until then the store is read without this cache")

    def _make_room(self, lock: int, size_bytes: int) -> bool:
        """Give the partial file its size, which then counts; False when the limit is too small."""
        with self._sum() as file:
            total = int(read_at(file, SUM_DIGITS, 0) or b"0")
            if total + size_bytes > self.limit_bytes:
                total = self._trimmed(self.limit_bytes - size_bytes)
            fits = total + size_bytes <= self.limit_bytes
            if fits:
                os.ftruncate(lock, size_bytes)
                total += size_bytes
            _write_sum(file, total)
        return fits

    def _trimmed(self, wanted_bytes: int) -> int:
        """Delete the oldest blocks if the blocks have more than `wanted_bytes`; return their size afterwards."""
        # A block may get its final name while this looks: it counts once, under either.
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
        """The directories of blocks that this user has made, and that nobody else could have changed."""
        for dataset in self.directory.glob("dataset-*"):
            folder = dataset / BLOCKS
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if not any(
                    ownership.reason_for_distrust(os.lstat(directory), directory.parent) for directory in (dataset, folder)
                ):
                    yield folder

    @contextlib.contextmanager
    def _sum(self) -> Iterator[int]:
        """The file with the sum of the sizes, locked."""
        file = os.open(self._sum_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            if ownership.reason_for_distrust(os.fstat(file), self.directory) is not None:
                raise CannotCreate(f"{self._sum_path}: others can write to it", "choose another --object-storage-cache-path")
            _lock(file)
            yield file
        finally:
            os.close(file)


def _locked_partial(partial: Path) -> int:
    """A new partial file, locked; waits for the process that has it."""
    while True:
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            has_locks = _lock(descriptor)
            if is_at(descriptor, partial):
                if not has_locks or os.fstat(descriptor).st_size == 0:
                    return descriptor
                # A killed process's: it may have some of its bytes, and its size is counted again.
                os.unlink(partial)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Wait for the lock; False where the filesystem has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno in WITHOUT_LOCKS:
            return False
        raise
    return True


def _partial_bytes(path: str) -> int:
    """The size of a partial file that somebody fills; one that nobody does is deleted."""
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
