"""Local and remote files: open, list, and publish outputs so that they are never half-visible.

A path with "://" goes through fsspec (s3://, memory://, ...); every other path uses the operating system directly and costs
nothing extra. A local output appears by rename (`local_files`), a remote one when its upload completes.
"""

import contextlib
import glob
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, TypeVar, cast

from lt_shared import credentials
from lt_shared.console import BadConfig, BadData, IoFailure, NoInput, Unavailable, suggestions, warn
from lt_shared.files import ownership
from lt_shared.files.local_files import creating, filling, publish_file, writing
from lt_shared.files.local_files import publish_directory as publish_directory
from lt_shared.files.local_files import publish_prepared_directory as publish_prepared_directory
from lt_shared.files.local_files import sync_directory as sync_directory
from lt_shared.files.remote_stream import RemoteStream

Result = TypeVar("Result")

REMOTE_ATTEMPTS = 4
# Seconds between two warnings that a store does not answer.
WARNING_SECONDS = 10
_warning = threading.Lock()
_warned: float | None = None
FAILING = "the store or the network fails: run the same command again later"
HUB = "hf://"
_HUB_HINT = "a private or gated repository needs HF_TOKEN, or hf auth login; the address is hf://datasets/OWNER/NAME/PATH"
# Errors of botocore that another attempt may heal.
DAMAGED_ANSWERS = {"FlexibleChecksumError"}


def is_remote(path: str | os.PathLike[str]) -> bool:
    return "://" in os.fspath(path)


def store_of(path: str, connections: int | None = None) -> tuple[Any, str]:
    """Return fsspec's filesystem for a remote path, and the name of the path in it.

    `connections` bounds the connections to an S3 store, by default 10. Raises Unavailable.
    """
    import fsspec

    options: dict[str, Any] = {}
    if connections and path.startswith(("s3://", "s3a://")):
        # Keep the user's configuration (FSSPEC_S3): a keyword argument would replace it as a whole.
        configured = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
        options["config_kwargs"] = {"max_pool_connections": connections, **configured}
    if path.startswith(("file://", "local://")):
        # A store has no directories: writing an object needs none. Local files behave alike with this option.
        options["auto_mkdir"] = True
    try:
        filesystem, key = fsspec.url_to_fs(path, **options)
    except (ImportError, ValueError) as error:
        package = "huggingface_hub for hf://" if path.startswith(HUB) else "s3fs for s3://"
        raise Unavailable(f"{path}: {error}", f"install the filesystem package, e.g. pip install {package}") from None
    except TypeError:
        raise Unavailable(
            f"{path}: this kind of store needs more than an address", "copy the files to disk or to s3://"
        ) from None
    return filesystem, key


def retry(operation: Callable[[], Result], what: str) -> Result:
    """Call `operation`, and repeat it after 1, 2 and 4 seconds if a remote store fails with an error that may be temporary.

    Raises: FileNotFoundError and the like at once, because a retry would not help; Unavailable when the store needs credentials,
    cannot be reached, or cannot do this at all; IoFailure after the last attempt.
    """
    for attempt in range(REMOTE_ATTEMPTS):
        try:
            return operation()
        except (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError):
            raise
        except NotImplementedError:
            raise Unavailable(f"{what}: this kind of store is read-only", "write to a local path or to s3://") from None
        except (*_client_errors(), *_transfer_errors()) as error:
            # A server may repeat the token that it refuses.
            reason = f"{what}: {credentials.without_tokens(str(error) or type(error).__name__)}"
            if isinstance(error, _client_errors()) and type(error).__name__ not in DAMAGED_ANSWERS:
                raise Unavailable(reason, _remedy(error)) from None
            if attempt == REMOTE_ATTEMPTS - 1:
                raise IoFailure(reason, FAILING) from None
            warn_seldom(f"{reason}: asking again")
            time.sleep(2**attempt)
    raise AssertionError("unreachable")


def warn_seldom(message: str) -> None:
    """Warn at most every WARNING_SECONDS, because many requests fail together and each attempt may take half a minute."""
    global _warned
    with _warning:
        if _warned is not None and time.monotonic() - _warned < WARNING_SECONDS:
            return
        _warned = time.monotonic()
    warn(message)


def _client_errors() -> tuple[type[Exception], ...]:
    """Return botocore's errors, which are not OSErrors; none if botocore is not imported.

    botocore raises them before a server answers, after s3fs has retried.
    """
    botocore = sys.modules.get("botocore.exceptions")
    return (botocore.BotoCoreError,) if botocore else ()


def _remedy(error: Exception) -> str:
    botocore = sys.modules["botocore.exceptions"]
    answered = not isinstance(error, (botocore.HTTPClientError, botocore.ConnectionError))
    return f"{'set the credentials and' if answered else 'see the network and'} the endpoint in the environment"


def _transfer_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of failed connections and truncated answers. Those of some libraries are not OSErrors."""
    # httpx2 is the library of huggingface_hub from 2.0 on.
    modules = (("aiohttp", "ClientError"), ("httpx", "TransportError"), ("httpx2", "TransportError"))
    return (OSError, *(getattr(sys.modules[module], name) for module, name in modules if module in sys.modules))


def no_such_file(name: str) -> NoInput:
    """The error of a missing file. The Hub answers alike for what an account may not see."""
    hint = _HUB_HINT if name.startswith(HUB) else None if is_remote(name) else suggestions.for_missing_file(name)
    return NoInput(f"{name}: no such file", hint)


def exists(path: str | os.PathLike[str]) -> bool:
    if not is_remote(path):
        return os.path.exists(path)
    filesystem, key = store_of(os.fspath(path))
    return retry(lambda: bool(filesystem.exists(key)), os.fspath(path))


def size_bytes(path: str | os.PathLike[str]) -> int:
    """Raises NoInput when there is no such file."""
    try:
        if not is_remote(path):
            return os.stat(path).st_size
        filesystem, key = store_of(os.fspath(path))
        return retry(lambda: int(filesystem.size(key)), os.fspath(path))
    except FileNotFoundError:
        raise no_such_file(os.fspath(path)) from None


def fingerprint(path: str | os.PathLike[str], refresh: bool = False) -> dict[str, str | int]:
    """A record that differs after a file was replaced or changed.

    Local: absolute path, size in bytes and modification time. Remote: full URL and the version that the store gives the object,
    on S3 its ETag; `refresh` asks the store instead of fsspec's cached listing. Raises NoInput when there is no such file.
    """
    name = os.fspath(path)
    try:
        if is_remote(name):
            filesystem, key = store_of(name)
            if refresh:
                filesystem.invalidate_cache(filesystem._parent(key))
            details = retry(lambda: filesystem.info(key), name)
            version = details.get("ETag") or retry(lambda: filesystem.ukey(key), name)
            return {"path": filesystem.unstrip_protocol(key), "version": str(version)}
        status = os.stat(name)
    except FileNotFoundError:
        raise no_such_file(name) from None
    return {"path": os.path.abspath(name), "size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def open_read(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open for reading. Raises NoInput if there is no such readable file, BadData for a link that another user made."""
    name = os.fspath(path)
    with reading(name):
        if not is_remote(name):
            return open(name, "rb", opener=ownership.open_checked)
        filesystem, key = store_of(name)
        file = retry(lambda: filesystem.open(key, "rb"), name)
        return cast(IO[bytes], RemoteStream(file, lambda operation: retry(operation, name)))


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Convert the errors of opening a missing or unreadable file in the body to NoInput, which names the file."""
    try:
        yield
    except FileNotFoundError:
        raise no_such_file(name) from None
    except PermissionError:
        raise NoInput(f"{name}: permission denied") from None
    except IsADirectoryError:
        raise NoInput(f"{name}: is a directory") from None
    except NotADirectoryError:
        raise NoInput(f"{name}: a part of the path is not a directory") from None


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    name = os.fspath(path)
    if not is_remote(name):
        with open_read(name) as file:
            return file.read()
    filesystem, key = store_of(name)
    with reading(name):
        return retry(lambda: bytes(filesystem.cat_file(key)), name)


def read_record(path: str | os.PathLike[str]) -> bytes:
    """Read a small file beside the data, like `read_bytes`. Raises BadData for a pipe, because reading a pipe could block."""
    name = os.fspath(path)
    if not is_remote(name) and is_special(name):
        raise BadData(f"{name}: not a regular file")
    return read_bytes(name)


def read_range(path: str | os.PathLike[str], begin: int, end: int) -> bytes:
    """The bytes of a remote object from `begin` to before `end`, fewer where it ends earlier. Safe to call from many threads."""
    name = os.fspath(path)
    filesystem, key = store_of(name)
    try:
        return retry(lambda: bytes(filesystem.cat_file(key, start=begin, end=end)), name)
    except FileNotFoundError:
        raise no_such_file(name) from None


def read_ranges(ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
    """Read ranges (path, begin, end) from one store, concurrently if the store allows it."""
    if not ranges:
        return []
    filesystem, _ = store_of(ranges[0][0])
    keys = [filesystem._strip_protocol(path) for path, _, _ in ranges]
    begins, ends = [begin for _, begin, _ in ranges], [end for _, _, end in ranges]
    try:
        return [bytes(data) for data in retry(lambda: filesystem.cat_ranges(keys, begins, ends, on_error="raise"), ranges[0][0])]
    except FileNotFoundError as error:
        raise NoInput(f"{error}: no such file") from None


def is_directory(path: str | os.PathLike[str]) -> bool:
    """Whether it is a directory. A remote store has none: there a path that ends with a slash is a prefix of object names."""
    return os.fspath(path).endswith("/") if is_remote(path) else os.path.isdir(path)


def is_special(path: str) -> bool:
    """Whether it is a pipe, a device or a socket."""
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))


def expand(patterns: Sequence[str]) -> list[str]:
    """Resolve files and glob patterns to a list of paths: given order, each pattern's matches sorted, "-" kept.

    Raises NoInput for a pattern that matches nothing.
    """
    paths: list[str] = []
    for pattern in patterns:
        if pattern == "-" or not glob.has_magic(pattern) or (not is_remote(pattern) and os.path.exists(pattern)):
            paths.append(pattern)
            continue
        matching_paths = _glob_remote(pattern) if is_remote(pattern) else glob.glob(pattern, recursive=True)
        if not matching_paths:
            hint = _HUB_HINT if pattern.startswith(HUB) else "look at the directory with ls; * does not match / nor a leading dot"
            raise NoInput(f"{pattern}: no file matches", hint)
        paths.extend(sorted(matching_paths))
    return paths


def _glob_remote(pattern: str) -> list[str]:
    filesystem, key = store_of(pattern)
    try:
        matching_keys = retry(lambda: filesystem.glob(key), pattern)
    except FileNotFoundError:
        return []
    return [filesystem.unstrip_protocol(match) for match in matching_keys]


def sizes_below(url: str) -> dict[str, int]:
    """The objects whose names begin with a remote directory's, hidden ones too: names relative to it, and sizes in bytes."""
    filesystem, key = store_of(url.rstrip("/"))
    filesystem.invalidate_cache(key)
    details_by_key = retry(lambda: filesystem.find(key, detail=True), url)
    return {path.removeprefix(key).lstrip("/"): int(info["size"]) for path, info in details_by_key.items()}


def upload(path: str | os.PathLike[str], url: str) -> None:
    """Copy a local file to a remote store; the object appears when it is complete. Raises IoFailure."""
    filesystem, key = store_of(url)
    with writing(url):
        retry(lambda: filesystem.put_file(os.fspath(path), key), url)
        filesystem.invalidate_cache(filesystem._parent(key))


def remove(path: str | os.PathLike[str]) -> None:
    """Delete a file for good, also through a power failure; one that does not exist is fine."""
    if not is_remote(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            sync_directory(os.path.dirname(path) or ".")
        return
    filesystem, key = store_of(os.fspath(path))
    with contextlib.suppress(FileNotFoundError):
        retry(lambda: filesystem.rm_file(key), os.fspath(path))


@contextlib.contextmanager
def publish(path: str | os.PathLike[str], mode: int | None = None) -> Iterator[IO[bytes]]:
    """Yield a binary file that becomes `path` when the block ends without an exception, durable and whole; otherwise nothing.

    A new local file has this mode, or the one that the umask gives; a symbolic link is replaced, not followed.

    Raises: CannotCreate when the directory is missing or not writable, TryAgain when another process is writing the same path,
    IoFailure when the disk is full.
    """
    name = os.fspath(path)
    with _publish_remote(name) if is_remote(name) else publish_file(name, mode) as file:
        yield file


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Publish a small file at once: on a remote store with a single request."""
    name = os.fspath(path)
    if is_remote(name):
        filesystem, key = store_of(name)
        with writing(name):
            retry(lambda: filesystem.pipe_file(key, data), name)
            filesystem.invalidate_cache(filesystem._parent(key))
        return
    with publish(name) as file:
        file.write(data)


@contextlib.contextmanager
def _publish_remote(name: str) -> Iterator[IO[bytes]]:
    """A multipart upload that is completed last. Stores that ignore `autocommit` (memory://) show the object while it grows."""
    filesystem, key = store_of(name)
    with creating(name):
        file = retry(lambda: filesystem.open(key, "wb", autocommit=False), name)
    try:
        with filling(name):
            yield file
        with writing(name):
            file.close()
            file.commit()
            # A directory listing that was cached before the upload does not know the object.
            filesystem.invalidate_cache(filesystem._parent(key))
    except _client_errors() as error:
        _discard(file)
        raise IoFailure(f"{name}: {error}") from None
    except BaseException:
        _discard(file)
        raise


def _discard(file: Any) -> None:
    """Abort an upload. The file counts as closed afterwards, or its finaliser would start another upload."""
    with contextlib.suppress(OSError, *_client_errors()):
        file.discard()
    with contextlib.suppress(AttributeError):
        file.closed = True


def require_local(path: str, purpose: str) -> None:
    """Raise BadConfig for a remote path where only a mounted filesystem works."""
    if is_remote(path):
        raise BadConfig(f"{path}: {purpose} needs a local or mounted path", "copy it to shared storage first")
