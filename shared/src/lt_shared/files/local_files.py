"""Publishing files and directories on a mounted filesystem, so that they are never half-visible.

An output grows as `.NAME.partial` in its own directory, locked by its writer, and is synced to disk before it is renamed: a
killed process leaves at most that hidden file, which the next run replaces (or resumes, with `resumable_files`). The sync costs
one flush of the disk's cache per output, a few milliseconds on an SSD. Callers use `storage`, which also handles remote paths.

Others may write to the directory, too. So a partial output is private until it is published (mode 0600 or 0700; then it gets what
the umask gives), is never opened through a link, and one that another user has put there is refused.
"""

import contextlib
import dataclasses
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lt_shared.console import CannotCreate, IoFailure, TryAgain
from lt_shared.files import leftovers, ownership

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def publish_file(name: str, mode: int | None = None) -> Iterator[IO[bytes]]:
    """`storage.publish` for a local path."""
    with creating(name, missing_directory_hint(name)):
        if os.path.exists(name) and not os.path.isfile(name):
            raise CannotCreate(f"{name}: exists and is not a regular file")
        descriptor = create_partial(name)
    with open(descriptor, "wb", buffering=1 << 20) as file:
        try:
            with filling(name):
                yield file
            publish_filled(file, name, mode)
        except BaseException:
            if is_at(descriptor, partial_path(name)):
                with contextlib.suppress(OSError):
                    os.unlink(partial_path(name))
            # close() would retry a buffered write that failed, and hide the first error.
            with contextlib.suppress(OSError):
                file.close()
            raise


def partial_path(name: str) -> str:
    """Return the path of the hidden file that the output `name` is written to."""
    return os.path.join(_parent(name), f".{os.path.basename(name)}.partial")


def missing_directory_hint(name: str) -> str:
    return f"mkdir -p {os.path.dirname(name) or '.'}"


def publish_filled(file: IO[bytes], name: str, mode: int | None = None) -> None:
    """Make the partial file of `name`, written through `file`, durable and visible, with `mode` or the umask's default."""
    with writing(name):
        file.flush()
        set_mode(file.fileno(), 0o666 & ~umask() if mode is None else mode)
        os.fsync(file.fileno())
        check_still_ours(file.fileno(), partial_path(name), name)
        os.replace(partial_path(name), name)
        sync_directory(_parent(name))


def set_mode(descriptor: int, mode: int) -> None:
    """Give a file or directory a mode; some mounts have their own and refuse."""
    try:
        # A directory that inherits its group keeps this bit.
        os.fchmod(descriptor, mode | os.fstat(descriptor).st_mode & stat.S_ISGID)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise


def umask() -> int:
    """This process's umask. The system call can only exchange it, which other threads would notice; Linux shows it in /proc."""
    try:
        with open("/proc/self/status", "rb") as file:
            return int(next(line for line in file if line.startswith(b"Umask:")).split()[1], 8)
    except (OSError, StopIteration):
        mask = os.umask(0o077)
        os.umask(mask)
        return mask


def create_partial(name: str) -> int:
    """Create and lock the partial file, replacing a leftover. Raises CannotCreate for another user's, there or at `name`.

    A process that gets the lock on a file which has since been renamed or deleted must not touch it: it would empty the output
    that another process has just published. Hence the look at the inode after the lock.
    """
    ownership.check_owner(name)
    partial = partial_path(name)
    while True:
        created = True
        try:
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            created = False
            try:
                descriptor = open_own(partial, os.O_WRONLY, name)
            except FileNotFoundError:
                continue
        try:
            lock(descriptor, name)
            current = is_at(descriptor, partial)
            if current and created:
                return descriptor
            if current:
                leftovers.remove(partial)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def open_own(path: str, flags: int, name: str) -> int:
    """Open a file that an earlier process of this user left for the output `name`.

    Raises CannotCreate, naming `name`, when it is a link, not a file, or another user's; FileNotFoundError when there is none.
    """
    status = os.lstat(path)
    reason = "is not a regular file" if not stat.S_ISREG(status.st_mode) else ownership.belongs_to_other(status, _parent(path))
    if reason is None:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
        if os.path.samestat(status, os.fstat(descriptor)):
            return descriptor
        os.close(descriptor)
        reason = "was exchanged while it was opened"
    raise CannotCreate(f"{name}: {path} {reason}", "remove it if it is not needed, or choose another output")


def _parent(path: str | os.PathLike[str]) -> str:
    return os.path.dirname(path) or "."


def is_at(descriptor: int, path: str | os.PathLike[str]) -> bool:
    """Whether an open file or directory is the one that `path` names now."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def check_still_ours(descriptor: int, partial: str | os.PathLike[str], name: str) -> None:
    """Raise TryAgain if another process has taken over the partial file, which is possible if locks do not work."""
    if not is_at(descriptor, partial):
        raise TryAgain(f"{name}: another process is writing it", "wait for that process to end")


@dataclasses.dataclass(frozen=True)
class PartialDirectory:
    """A directory that only this user can enter, until it is published; `descriptor` is open on it and holds its lock."""

    path: Path
    descriptor: int

    def open(self, name: str, flags: int) -> int:
        """Open the file `name`, with "/" between directories, below the directory; directories are made for O_CREAT.

        No symbolic link is followed on the way, and the path of the directory itself is not looked at: whoever may rename it
        cannot lead the writer elsewhere.
        """
        with self._parent(name, make=bool(flags & os.O_CREAT)) as parent:
            return os.open(name.rpartition("/")[2], flags | os.O_NOFOLLOW, 0o666, dir_fd=parent)

    def unlink(self, name: str) -> None:
        """Delete the file `name`, as `open` finds it."""
        with self._parent(name, make=False) as parent:
            os.unlink(name.rpartition("/")[2], dir_fd=parent)

    @contextlib.contextmanager
    def _parent(self, name: str, make: bool) -> Iterator[int]:
        """A descriptor of the directory that holds the file `name`."""
        parent = os.dup(self.descriptor)
        try:
            for folder in name.split("/")[:-1]:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=parent)
                child = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
                os.close(parent)
                parent = child
            yield parent
        finally:
            os.close(parent)

    def empty(self) -> None:
        """Delete all that is in the directory; links are deleted, not followed."""
        with os.scandir(self.descriptor) as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, is_directory in names:
            if is_directory:
                shutil.rmtree(name, dir_fd=self.descriptor)
            else:
                os.unlink(name, dir_fd=self.descriptor)


@contextlib.contextmanager
def publish_directory(path: str | os.PathLike[str], replace: bool = False, resume: bool = False) -> Iterator[PartialDirectory]:
    """Yield an empty directory beside `path` that becomes `path` when the block ends without an exception.

    Every file in it is synced first. An existing `path` is an error unless it is empty or `replace` is set; then the old
    directory is moved away before and deleted after. With `resume` the directory keeps its files after an exception, and holds
    the files that an earlier process of this user left, if nobody else could write there. Raises as `publish`.
    """
    target = Path(os.path.abspath(path))
    partial = Path(partial_path(str(target)))
    with creating(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = create_partial_directory(partial, str(target))
        if leftovers.could_be_renamed(partial, os.fstat(lock)):
            leftovers.remove(partial)
            os.close(lock)
            lock = create_partial_directory(partial, str(target))
    try:
        with filling(str(target)):
            is_trusted = ownership.reason_for_distrust(os.fstat(lock), target.parent) is None
            set_mode(lock, 0o700)
            directory = PartialDirectory(partial, lock)
            if not (resume and is_trusted):
                directory.empty()
            check_replaceable(target, replace)
            yield directory
        with writing(str(target)):
            check_still_ours(lock, partial, str(target))
            publish_prepared_directory(partial, target)
            check_still_ours(lock, target, str(target))
    except BaseException:
        if resume:
            with contextlib.suppress(OSError):
                os.rmdir(partial)
        elif is_at(lock, partial):
            shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def check_replaceable(target: Path, replace: bool) -> None:
    if target.exists() and not target.is_dir():
        raise CannotCreate(f"{target}: exists and is not a directory")
    if target.is_dir() and not replace and any(target.iterdir()):
        raise CannotCreate(f"{target}: exists and is not empty", "choose another output or pass --force")


def create_partial_directory(partial: Path, name: str, *operation: int) -> int:
    """Create and lock the partial directory; the returned descriptor holds the lock. See `create_partial` for the inode."""
    while True:
        with contextlib.suppress(FileExistsError):
            partial.mkdir(mode=0o700)
        try:
            descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise CannotCreate(f"{name}: {partial} is not a directory", "remove it, or choose another output") from None
        try:
            lock(descriptor, name, *operation)
            other = ownership.belongs_to_other(os.fstat(descriptor), partial.parent)
            if other is not None:
                raise CannotCreate(f"{name}: {partial} {other}", "remove it if it is not needed, or choose another output")
        except BaseException:
            os.close(descriptor)
            raise
        if is_at(descriptor, partial):
            return descriptor
        os.close(descriptor)


def publish_prepared_directory(prepared: Path, target: Path) -> None:
    """Sync every file below `prepared`, give it the umask's mode and rename it to `target`, replacing an existing directory.

    No single rename exchanges directories on every filesystem: between two renames the old directory lies in `.NAME.replaced`.
    If the second rename fails, it is put back.
    """
    for folder, _, names in os.walk(prepared):
        for name in names:
            _sync(os.path.join(folder, name))
        sync_directory(folder, 0o777 & ~umask() if folder == os.fspath(prepared) else None)
    replaced = target.parent / f".{target.name}.replaced"
    leftovers.remove(replaced)
    if not os.path.lexists(target):
        os.rename(prepared, target)
    else:
        status = os.lstat(target)
        leftovers.hide(target, replaced)
        try:
            os.rename(prepared, target)
        except BaseException:
            os.rename(replaced, target)
            if not stat.S_ISLNK(status.st_mode):
                os.chmod(target, stat.S_IMODE(status.st_mode))
            raise
    sync_directory(target.parent)
    leftovers.remove(replaced)


def sync_directory(path: str | os.PathLike[str], mode: int | None = None) -> None:
    """Make the names in a directory, and its `mode`, durable. Some network filesystems refuse; their servers do it anyway."""
    try:
        _sync(path, mode)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _sync(path: str | os.PathLike[str], mode: int | None = None) -> None:
    descriptor = os.open(path, os.O_RDONLY | (os.O_NOFOLLOW if mode is not None else 0))
    try:
        if mode is not None:
            set_mode(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(descriptor: int, name: str, operation: int = fcntl.LOCK_EX) -> None:
    """Take the lock on a partial output; filesystems without locks (some NFS and Lustre mounts) go without."""
    try:
        flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TryAgain(f"{name}: another process is writing it", "wait for that process to end") from None


def flock(descriptor: int, operation: int) -> None:
    """`fcntl.flock`, without effect on a filesystem without locks.

    NFS keeps the lock of a regular file that is open for writing on its server, for all nodes, until the process has ended; the
    lock of a directory counts on its own node only.
    """
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise


def read_at(descriptor: int, size_bytes: int, offset: int) -> bytes:
    """Read from `offset` of an open file, less than `size_bytes` only at its end: one read may return a part."""
    content = os.pread(descriptor, size_bytes, offset)
    while len(content) < size_bytes and (part := os.pread(descriptor, size_bytes - len(content), offset + len(content))):
        content += part
    return content


def write_at(descriptor: int, content: bytes, offset: int) -> None:
    """Write all of `content` at `offset` of an open file."""
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


@contextlib.contextmanager
def creating(name: str, hint: str | None = None) -> Iterator[None]:
    """Turn the errors of opening an output into CannotCreate; `hint` is for a missing directory."""
    try:
        yield
    except FileNotFoundError:
        raise CannotCreate(f"{name}: no such directory", hint) from None
    except PermissionError:
        raise CannotCreate(f"{name}: permission denied") from None
    except NotADirectoryError:
        raise CannotCreate(f"{name}: a part of the path is not a directory") from None
    except FileExistsError:
        raise CannotCreate(f"{name}: exists and is not a directory") from None
    except OSError as error:
        raise CannotCreate(f"{name}: {error.strerror or error}") from None


@contextlib.contextmanager
def writing(name: str) -> Iterator[None]:
    """Turn the errors of writing, syncing and renaming an output into IoFailure."""
    try:
        yield
    except OSError as error:
        raise _write_failure(name, error) from None


@contextlib.contextmanager
def filling(name: str) -> Iterator[None]:
    """Turn a full disk in the caller's block into IoFailure; other errors, which may not come from this output, pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        raise _write_failure(name, error) from None


def _write_failure(name: str, error: OSError) -> IoFailure:
    return IoFailure(f"{name}: {(error.strerror or str(error)).lower()}")
