"""Local and remote files: open, list, and publish outputs so that they are never half-visible.

A path with "://" goes through fsspec (s3://, memory://, ...); every other path uses the operating system directly and costs
nothing extra. `publish` writes to `.NAME.partial` in the same directory, holds a lock on it, syncs it to disk and renames it:
a killed process leaves at most that hidden file, which the next run overwrites. On remote stores the object appears when its
upload completes.
"""

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from lt_shared.console import BadConfig, CannotCreate, IoFailure, NoInput, TryAgain, Unavailable

Result = TypeVar("Result")

REMOTE_ATTEMPTS = 4


def is_remote(path: str | os.PathLike[str]) -> bool:
    return "://" in os.fspath(path)


def _filesystem(path: str) -> tuple[Any, str]:
    import fsspec

    try:
        filesystem, key = fsspec.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise Unavailable(f"{path}: {error}", "install the filesystem package, e.g. pip install s3fs for s3://") from None
    return filesystem, key


def retry(operation: Callable[[], Result], what: str) -> Result:
    """Call `operation`, again after 1, 2 and 4 seconds when a remote store fails in a way that may pass.

    Raises: FileNotFoundError and PermissionError at once; IoFailure after the last attempt.
    """
    for attempt in range(REMOTE_ATTEMPTS):
        try:
            return operation()
        except (FileNotFoundError, PermissionError, IsADirectoryError):
            raise
        except OSError as error:
            if attempt == REMOTE_ATTEMPTS - 1:
                raise IoFailure(f"{what}: {error}") from error
            time.sleep(2**attempt)
    raise AssertionError("unreachable")


def exists(path: str | os.PathLike[str]) -> bool:
    if not is_remote(path):
        return os.path.exists(path)
    filesystem, key = _filesystem(os.fspath(path))
    return retry(lambda: bool(filesystem.exists(key)), os.fspath(path))


def size_bytes(path: str | os.PathLike[str]) -> int:
    if not is_remote(path):
        return os.stat(path).st_size
    filesystem, key = _filesystem(os.fspath(path))
    return retry(lambda: int(filesystem.size(key)), os.fspath(path))


def open_read(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open for reading. Raises NoInput, naming the path, when there is no such readable file."""
    name = os.fspath(path)
    try:
        if not is_remote(name):
            return open(name, "rb")
        filesystem, key = _filesystem(name)
        return retry(lambda: filesystem.open(key, "rb"), name)
    except FileNotFoundError:
        raise NoInput(f"{name}: no such file") from None
    except PermissionError:
        raise NoInput(f"{name}: permission denied") from None
    except IsADirectoryError:
        raise NoInput(f"{name}: is a directory") from None


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    with open_read(path) as file:
        return file.read()


def expand(patterns: Sequence[str]) -> list[str]:
    """Resolve files and glob patterns to a list of paths: given order, each pattern's matches sorted, "-" kept.

    Raises NoInput for a pattern that matches nothing.
    """
    paths: list[str] = []
    for pattern in patterns:
        if pattern == "-" or not glob.has_magic(pattern) or (not is_remote(pattern) and os.path.exists(pattern)):
            paths.append(pattern)
            continue
        found = _glob_remote(pattern) if is_remote(pattern) else glob.glob(pattern, recursive=True)
        if not found:
            raise NoInput(f"{pattern}: no file matches")
        paths.extend(sorted(found))
    return paths


def _glob_remote(pattern: str) -> list[str]:
    filesystem, key = _filesystem(pattern)
    return [filesystem.unstrip_protocol(match) for match in retry(lambda: filesystem.glob(key), pattern)]


def remove(path: str | os.PathLike[str]) -> None:
    """Delete a file; one that does not exist is fine."""
    if not is_remote(path):
        Path(path).unlink(missing_ok=True)
        return
    filesystem, key = _filesystem(os.fspath(path))
    with contextlib.suppress(FileNotFoundError):
        retry(lambda: filesystem.rm_file(key), os.fspath(path))


@contextlib.contextmanager
def publish(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield a binary file that becomes `path` when the block ends without an exception, durable and whole; otherwise nothing.

    Raises: CannotCreate when the directory is missing or not writable, TryAgain when another process is writing the same path,
    IoFailure when the disk is full.
    """
    name = os.fspath(path)
    if is_remote(name):
        with _publish_remote(name) as file:
            yield file
        return
    directory = os.path.dirname(name) or "."
    partial = os.path.join(directory, f".{os.path.basename(name)}.partial")
    with _creating(name):
        if os.path.isdir(name):
            raise CannotCreate(f"{name}: is a directory")
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT, 0o666)
    with open(descriptor, "r+b", buffering=1 << 20) as file:
        _lock(descriptor, name)
        file.truncate()
        try:
            yield file
            with _writing(name):
                file.flush()
                os.fsync(descriptor)
                os.replace(partial, name)
                sync_directory(directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            # A buffered write that failed would be tried again on close and hide the first error.
            with contextlib.suppress(OSError):
                file.close()
            raise


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Publish a small file in one go."""
    with publish(path) as file:
        file.write(data)


@contextlib.contextmanager
def _publish_remote(name: str) -> Iterator[IO[bytes]]:
    filesystem, key = _filesystem(name)
    with _creating(name):
        file = retry(lambda: filesystem.open(key, "wb", autocommit=False), name)
    try:
        yield file
        with _writing(name):
            file.close()
            file.commit()
    except BaseException:
        file.discard()
        raise


@contextlib.contextmanager
def publish_directory(path: str | os.PathLike[str], replace: bool = False) -> Iterator[Path]:
    """Yield an empty directory beside `path` that becomes `path` when the block ends without an exception.

    Every file in it is synced first. An existing `path` is an error unless it is empty or `replace` is set; then the old one is
    moved away before and deleted after.
    """
    target = Path(path)
    partial = target.parent / f".{target.name}.partial"
    with _creating(str(target)):
        if target.exists() and not replace and (not target.is_dir() or any(target.iterdir())):
            raise CannotCreate(f"{target}: exists and is not empty", "choose another output or pass --force")
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir(exist_ok=True)
    lock = os.open(partial, os.O_RDONLY)
    try:
        _lock(lock, str(target))
        _empty(partial)
        try:
            yield partial
            with _writing(str(target)):
                publish_prepared_directory(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    finally:
        os.close(lock)


def publish_prepared_directory(prepared: Path, target: Path) -> None:
    """Sync every file below `prepared`, then rename it to `target`, replacing what was there."""
    for folder, _, names in os.walk(prepared):
        for name in names:
            _sync(os.path.join(folder, name))
        sync_directory(folder)
    replaced = target.parent / f".{target.name}.replaced"
    shutil.rmtree(replaced, ignore_errors=True)
    if target.exists():
        os.rename(target, replaced)
    os.rename(prepared, target)
    sync_directory(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def sync_directory(path: str | os.PathLike[str]) -> None:
    _sync(os.fspath(path))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _lock(descriptor: int, name: str) -> None:
    """Take the lock on a partial output; filesystems without locks (some NFS and Lustre mounts) go without."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TryAgain(f"{name}: another process is writing it", "wait for that process to end") from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise


@contextlib.contextmanager
def _creating(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise CannotCreate(f"{name}: no such directory", f"mkdir -p {os.path.dirname(name) or '.'}") from None
    except PermissionError:
        raise CannotCreate(f"{name}: permission denied") from None
    except NotADirectoryError:
        raise CannotCreate(f"{name}: a part of the path is not a directory") from None
    except FileExistsError:
        raise CannotCreate(f"{name}: exists and is not a directory") from None
    except OSError as error:
        raise CannotCreate(f"{name}: {error.strerror or error}") from None


@contextlib.contextmanager
def _writing(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise IoFailure(f"{name}: no space left on device") from None
        raise IoFailure(f"{name}: {error.strerror or error}") from None


def require_local(path: str, purpose: str) -> None:
    """Raise BadConfig for a remote path where only a mounted filesystem works."""
    if is_remote(path):
        raise BadConfig(f"{path}: {purpose} needs a local or mounted path", "copy it to shared storage first")
