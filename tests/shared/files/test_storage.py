"""Outputs appear whole or not at all: under SIGKILL, a full disk, two writers, and on remote stores."""

import errno
import io
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import fsspec
import pytest
from botocore.exceptions import (
    ConnectionClosedError,
    EndpointConnectionError,
    FlexibleChecksumError,
    NoCredentialsError,
    ReadTimeoutError,
)
from hypothesis import given
from hypothesis import strategies as st

from lt_shared.console import BadConfig, CannotCreate, IoFailure, NoInput, ToolError, TryAgain, Unavailable
from lt_shared.files import local_files, remote_stream, storage


@pytest.fixture
def bucket() -> Iterator[str]:
    fsspec.filesystem("memory").store.clear()
    yield "memory://bucket"
    fsspec.filesystem("memory").store.clear()


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_publish_makes_the_file_appear_at_the_end(tmp_path: Path) -> None:
    with storage.publish(tmp_path / "out") as file:
        file.write(b"con")
        assert not (tmp_path / "out").exists()
        file.write(b"tent")
    assert (tmp_path / "out").read_bytes() == b"content"
    assert names(tmp_path) == ["out"]


@given(parts=st.lists(st.binary(max_size=50)))
def test_published_bytes_are_those_written(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("out") / "file"
    for target in (path, "memory://property/file"):
        with storage.publish(target) as file:
            for part in parts:
                file.write(part)
        assert storage.read_bytes(target) == b"".join(parts)
        assert storage.size_bytes(target) == sum(map(len, parts))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_an_exception_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(error), storage.publish(tmp_path / "out") as file:
        file.write(b"new")
        raise error
    assert (tmp_path / "out").read_bytes() == b"old"
    assert names(tmp_path) == ["out"]


def test_a_relative_path_is_published_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage.write_bytes("out", b"x")
    assert names(tmp_path) == ["out"]


KILLED_WHILE_PUBLISHING = """
import os, signal, sys
from lt_shared.files import local_files, storage

def kill(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

path, step = sys.argv[1:]
with storage.publish(path) as file:
    file.write(b"new" * 1_000_000)
    if step == "writing":
        kill()
    if step == "syncing":
        os.fsync = kill
    if step == "before the rename":
        os.replace = kill
    if step == "after the rename":
        local_files.sync_directory = kill
"""


@pytest.mark.parametrize("step", ["writing", "syncing", "before the rename", "after the rename"])
def test_sigkill_leaves_the_old_or_the_new_file_whole(tmp_path: Path, step: str) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_PUBLISHING, path, step])
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == (b"new" * 1_000_000 if step == "after the rename" else b"old")
    storage.write_bytes(path, b"again")
    assert path.read_bytes() == b"again"
    assert names(tmp_path) == ["out"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 1 MiB where one can be mounted, otherwise a directory with a limit of 1 MiB a file."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", directory], capture_output=True).returncode == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if not mounted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield directory
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    if mounted:
        subprocess.run(["umount", directory], check=True)


def test_a_full_disk_is_reported_and_leaves_the_old_file(small_disk: Path) -> None:
    path = small_disk / "out"
    storage.write_bytes(path, b"old")
    for size in (3 << 20, (1 << 20) + 10):  # fails in write(), and in the last flush
        with pytest.raises(IoFailure, match=r"out: (no space left on device|file too large)"), storage.publish(path) as file:
            for _ in range(0, size, 1000):
                file.write(bytes(1000))
    assert path.read_bytes() == b"old"
    assert names(small_disk) == ["out"]


def test_a_full_disk_leaves_no_directory(small_disk: Path) -> None:
    with pytest.raises(IoFailure), storage.publish_directory(small_disk / "out") as directory:
        (directory.path / "part").write_bytes(bytes(3 << 20))
    assert names(small_disk) == []


def test_errors_of_inputs_read_inside_pass_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), storage.publish(tmp_path / "out"):
        (tmp_path / "input").read_bytes()


def test_a_second_writer_is_warned_to_try_again(tmp_path: Path) -> None:
    with storage.publish(tmp_path / "out") as file:
        file.write(b"first")
        with pytest.raises(TryAgain), storage.publish(tmp_path / "out"):
            pass
    assert (tmp_path / "out").read_bytes() == b"first"


def test_a_writer_that_waited_for_the_lock_does_not_touch_the_published_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opened the partial file before the first writer renamed it, and locks it after."""
    path = tmp_path / "out"
    first = storage.publish(path)
    first.__enter__().write(b"first")
    lock = local_files.lock

    def finish_first(descriptor: int, name: str) -> None:
        monkeypatch.setattr(local_files, "lock", lock)
        first.__exit__(None, None, None)
        lock(descriptor, name)

    monkeypatch.setattr(local_files, "lock", finish_first)
    with storage.publish(path) as file:
        assert path.read_bytes() == b"first"
        file.write(b"second")
    assert path.read_bytes() == b"second"


def test_without_locks_the_earlier_writer_notices_the_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(TryAgain), storage.publish(tmp_path / "out") as earlier:
        earlier.write(b"earlier")
        with storage.publish(tmp_path / "out") as later:
            later.write(b"later")
    assert (tmp_path / "out").read_bytes() == b"later"
    assert names(tmp_path) == ["out"]


def test_the_mode_follows_the_umask_also_after_a_killed_run(tmp_path: Path) -> None:
    leftover = tmp_path / ".out.partial"
    leftover.write_bytes(b"left by a killed run")
    leftover.chmod(0o600)
    previous = os.umask(0o027)
    try:
        storage.write_bytes(tmp_path / "out", b"x")
        with storage.publish_directory(tmp_path / "folder"):
            pass
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o750
    assert (tmp_path / "out").read_bytes() == b"x"


def test_a_symbolic_link_is_replaced_and_its_target_kept(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"kept")
    for link, target in ((tmp_path / "link", "target"), (tmp_path / "dangling", "nowhere")):
        link.symlink_to(target)
        storage.write_bytes(link, b"new")
        assert not link.is_symlink()
        assert link.read_bytes() == b"new"
    assert (tmp_path / "target").read_bytes() == b"kept"


def test_a_link_in_the_place_of_the_partial_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"kept")
    (tmp_path / ".out.partial").symlink_to("victim")
    with pytest.raises(CannotCreate):
        storage.write_bytes(tmp_path / "out", b"new")
    assert (tmp_path / "victim").read_bytes() == b"kept"


def test_outputs_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(CannotCreate, match="no such directory") as caught:
        storage.write_bytes(tmp_path / "missing/out", b"")
    assert caught.value.hint == f"mkdir -p {tmp_path}/missing"
    for path, reason in (
        (tmp_path, "not a regular file"),
        (tmp_path / "fifo", "not a regular file"),
        (tmp_path / "file/out", "a part of the path is not a directory"),
        (tmp_path / ("x" * 255), "File name too long"),
    ):
        with pytest.raises(CannotCreate, match=reason):
            storage.write_bytes(path, b"")
    with pytest.raises(CannotCreate, match="not a directory"), storage.publish_directory(tmp_path / "file", replace=True):
        pass
    assert names(tmp_path) == ["fifo", "file"]


def as_nobody(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python code as a user whom permissions bind; root passes every check."""
    drop = "import os; os.getuid() or (os.setgid(65534), os.setuid(65534))\n"
    imports = "from lt_shared.files import storage; from lt_shared.console import *; import sys\n"
    return subprocess.run([sys.executable, "-c", imports + drop + code, *map(str, arguments)], capture_output=True, text=True)


def test_permissions(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    try:
        (directory / "secret").touch(mode=0o000)
        directory.chmod(0o555)
        refused = as_nobody("storage.write_bytes(sys.argv[1], b'')", directory / "out")
        assert "CannotCreate" in refused.stderr and "permission denied" in refused.stderr
        unreadable = as_nobody("storage.read_bytes(sys.argv[1])", directory / "secret")
        assert "NoInput" in unreadable.stderr and "permission denied" in unreadable.stderr
    finally:
        directory.chmod(0o755)
        shutil.rmtree(directory)


def test_reading_names_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path, reason in (
        (tmp_path / "none", "no such file"),
        (tmp_path, "is a directory"),
        (tmp_path / "file/x", "a part of the path is not a directory"),
        ("memory://bucket/none", "no such file"),
    ):
        with pytest.raises(NoInput, match=f"{path}: {reason}"):
            storage.read_bytes(path)


def test_directories_appear_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "new/run"
    with storage.publish_directory(target) as directory:
        (directory.path / "deep").mkdir()
        (directory.path / "deep/file").write_bytes(b"x")
        assert not target.exists()
    assert (target / "deep/file").read_bytes() == b"x"
    assert names(target.parent) == ["run"]


def test_an_existing_directory_is_kept_unless_it_is_empty_or_replaced(tmp_path: Path) -> None:
    target = tmp_path / "run"
    target.mkdir()
    with storage.publish_directory(target) as directory:
        (directory.path / "file").write_bytes(b"1")
    with pytest.raises(CannotCreate, match="not empty") as caught, storage.publish_directory(target):
        pass
    assert caught.value.hint is not None and "--force" in caught.value.hint
    with storage.publish_directory(target, replace=True) as directory:
        assert names(directory.path) == []
        (directory.path / "other").write_bytes(b"2")
    assert names(target) == ["other"]
    assert names(tmp_path) == ["run"]


def test_a_failed_directory_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/old").write_bytes(b"")
    with pytest.raises(ZeroDivisionError), storage.publish_directory(tmp_path / "run", replace=True) as directory:
        (directory.path / "new").write_bytes(b"")
        raise ZeroDivisionError
    assert names(tmp_path / "run") == ["old"]
    rename = os.rename

    def fail_for_new(source: Path, target: Path) -> None:
        if source.name.endswith(".partial"):
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_for_new)
    with pytest.raises(IoFailure, match="input/output error"), storage.publish_directory(tmp_path / "run", replace=True):
        pass
    assert names(tmp_path / "run") == ["old"]
    assert names(tmp_path) == ["run"]


def test_one_writer_of_a_directory_at_a_time(tmp_path: Path) -> None:
    with storage.publish_directory(tmp_path / "run") as directory:
        (directory.path / "file").write_bytes(b"x")
        with pytest.raises(TryAgain), storage.publish_directory(tmp_path / "run"):
            pass
    assert names(tmp_path / "run") == ["file"]


def test_a_directory_that_appeared_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second writer opened the partial directory just before the first one renamed it."""
    first = storage.publish_directory(tmp_path / "run")
    (first.__enter__().path / "file").write_bytes(b"first")
    lock = local_files.lock

    def finish_first(descriptor: int, name: str) -> None:
        monkeypatch.setattr(local_files, "lock", lock)
        first.__exit__(None, None, None)
        lock(descriptor, name)

    monkeypatch.setattr(local_files, "lock", finish_first)
    with pytest.raises(CannotCreate, match="not empty"), storage.publish_directory(tmp_path / "run"):
        pass
    assert (tmp_path / "run/file").read_bytes() == b"first"
    assert names(tmp_path) == ["run"]


def test_a_directory_left_by_a_killed_run_is_emptied(tmp_path: Path) -> None:
    (tmp_path / ".run.partial/deep").mkdir(parents=True)
    (tmp_path / ".run.partial/file").write_bytes(b"")
    (tmp_path / ".run.partial/link").symlink_to("/nowhere")
    with storage.publish_directory(tmp_path / "run") as directory:
        assert names(directory.path) == []


def test_expand(tmp_path: Path, bucket: str) -> None:
    for name in ("b.jsonl", "a.jsonl", "odd[1].jsonl"):
        (tmp_path / name).write_bytes(b"")
        storage.write_bytes(f"{bucket}/{name}", b"")
    odd = str(tmp_path / "odd[1].jsonl")
    assert storage.expand(["-", odd, f"{tmp_path}/[ab].jsonl"]) == ["-", odd, f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl"]
    assert storage.expand([str(tmp_path / "missing")]) == [str(tmp_path / "missing")]
    assert storage.expand([f"{bucket}/?.jsonl"]) == ["memory:///bucket/a.jsonl", "memory:///bucket/b.jsonl"]
    for pattern in (f"{tmp_path}/*.gz", f"{bucket}/*.gz"):
        with pytest.raises(NoInput, match="no file matches"):
            storage.expand([pattern])


def test_remote_files(bucket: str) -> None:
    path = f"{bucket}/file"
    assert not storage.exists(path)
    storage.write_bytes(path, b"content")
    assert storage.exists(path)
    with storage.open_read(path) as file:
        assert file.read() == b"content"
    storage.remove(path)
    storage.remove(path)
    assert not storage.exists(path)


def test_a_failed_upload_shows_nothing_on_stores_with_a_commit(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/out"
    with pytest.raises(ZeroDivisionError), storage.publish(url) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert names(tmp_path) == []
    storage.write_bytes(url, b"whole")
    assert (tmp_path / "out").read_bytes() == b"whole"


def test_an_unknown_remote_store_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="nosuch://x"):
        storage.exists("nosuch://x")


def test_a_store_that_needs_more_than_an_address_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="github://owner/name: this kind of store needs more than an address"):
        storage.exists("github://owner/name")


def test_a_store_that_cannot_be_written_is_unavailable() -> None:
    with (
        pytest.raises(Unavailable, match="http://localhost/out: this kind of store is read-only"),
        storage.publish("http://localhost/out"),
    ):
        pass


def test_remote_access_without_credentials_is_unavailable(tmp_path: Path) -> None:
    """The AWS client has its own exceptions, which are no OSError."""
    code = """
from lt_shared import console
from lt_shared.files import listing, storage
try:
    storage.read_bytes("s3://bucket/key")
except console.Unavailable as error:
    print(error, "|", error.hint)
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    environment |= {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("s3://bucket/key: Unable to locate credentials |"), done.stderr


def test_retry_waits_longer_each_time_and_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    attempts = iter([OSError("reset"), OSError("reset"), "done"])

    def operation() -> str:
        outcome = next(attempts)
        if isinstance(outcome, OSError):
            raise outcome
        return str(outcome)

    assert storage.retry(operation, "s3://x") == "done"
    assert waits == [1, 2]

    def always() -> str:
        raise OSError("no route")

    with pytest.raises(IoFailure, match="s3://x: no route"):
        storage.retry(always, "s3://x")
    assert waits == [1, 2, 1, 2, 4]


def test_a_store_that_fails_is_named_before_it_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, where many requests fail together."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(storage, "_warned", None)

    def operation() -> None:
        raise OSError(errno.EBUSY, "Please reduce your request rate.")

    for _ in range(3):
        with pytest.raises(IoFailure, match="reduce your request rate"):
            storage.retry(operation, "s3://x")
    assert capsys.readouterr().err.count("s3://x: [Errno 16] Please reduce your request rate.: asking again") == 1


def test_a_small_object_whose_answer_breaks_off_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    answers = iter([OSError("reset"), b"content"])

    def cat_file(key: str) -> bytes:
        answer = next(answers, OSError("cut off"))
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(storage, "store_of", lambda path: (SimpleNamespace(cat_file=cat_file), path))
    assert storage.read_bytes("s3://bucket/name") == b"content"
    with pytest.raises(IoFailure, match="s3://bucket/name: cut off"):
        storage.read_bytes("s3://bucket/name")


@pytest.mark.parametrize("error", [FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError])
def test_retry_does_not_repeat_what_cannot_heal(error: type[OSError]) -> None:
    calls = []

    def operation() -> None:
        calls.append(1)
        raise error

    with pytest.raises(error):
        storage.retry(operation, "x")
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("error", "raised", "hint"),
    [
        (
            lambda: ReadTimeoutError(endpoint_url="http://store"),
            Unavailable,
            "see the network and the endpoint in the environment",
        ),
        (lambda: NoCredentialsError(), Unavailable, "set the credentials and the endpoint in the environment"),
        (
            lambda: EndpointConnectionError(endpoint_url="http://store"),
            Unavailable,
            "see the network and the endpoint in the environment",
        ),
        (lambda: FlexibleChecksumError(error_msg="Expected checksum"), IoFailure, storage.FAILING),
        (lambda: aiohttp.ClientPayloadError("cut off"), IoFailure, storage.FAILING),
    ],
)
def test_what_the_clients_of_stores_raise(
    error: Callable[[], Exception], raised: type[ToolError], hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)

    def operation() -> None:
        raise error()

    with pytest.raises(raised) as caught:
        storage.retry(operation, "s3://bucket/name")
    assert caught.value.hint == hint
    assert str(caught.value).startswith("s3://bucket/name: ")


def test_an_upload_whose_connection_ends_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Upload(io.BytesIO):
        def write(self, data: Any) -> int:
            raise ConnectionClosedError(endpoint_url="http://store")

        def discard(self) -> None:
            discarded.append(True)

    discarded: list[bool] = []
    store = SimpleNamespace(open=lambda *arguments, **options: Upload())
    monkeypatch.setattr(storage, "store_of", lambda path: (store, path))
    with pytest.raises(IoFailure, match="s3://bucket/name: Connection was closed"), storage.publish("s3://bucket/name") as file:
        file.write(b"x")
    assert discarded == [True]


def test_require_local() -> None:
    storage.require_local("/data/x", "reading")
    with pytest.raises(BadConfig, match="s3://b/x: reading needs a local"):
        storage.require_local("s3://b/x", "reading")
    assert issubclass(BadConfig, ToolError)


def test_fingerprint_of_a_local_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"123")
    first = storage.fingerprint(path)
    assert first == {"path": str(path), "size_bytes": 3, "mtime_ns": path.stat().st_mtime_ns}
    monkeypatch.chdir(tmp_path)
    assert storage.fingerprint("a") == first
    os.utime(path, ns=(1, 1))
    assert storage.fingerprint(path) != first


def test_fingerprint_of_a_remote_object_is_the_same_however_it_was_found(bucket: str) -> None:
    storage.write_bytes(f"{bucket}/a", b"123")
    first = storage.fingerprint(f"{bucket}/a")
    [found] = storage.expand([f"{bucket}/*"])
    assert storage.fingerprint(found) == first
    storage.write_bytes(f"{bucket}/a", b"124")
    assert storage.fingerprint(found) != first


def test_fingerprint_of_nothing(tmp_path: Path, bucket: str) -> None:
    for path in (str(tmp_path / "none"), f"{bucket}/none"):
        with pytest.raises(NoInput, match="none: no such file"):
            storage.fingerprint(path)


def test_size_of_nothing(tmp_path: Path, bucket: str) -> None:
    for path in (tmp_path / "missing", f"{bucket}/missing"):
        with pytest.raises(NoInput, match="missing: no such file"):
            storage.size_bytes(path)


def test_ranges_of_remote_objects(bucket: str) -> None:
    storage.write_bytes(f"{bucket}/file", b"0123456789")
    assert storage.read_range(f"{bucket}/file", 3, 7) == b"3456"
    assert storage.read_range(f"{bucket}/file", 8, 20) == b"89"
    with pytest.raises(NoInput, match="missing: no such file"):
        storage.read_range(f"{bucket}/missing", 0, 1)


def test_upload_and_sizes_of_a_remote_directory(tmp_path: Path, bucket: str) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    for name in ("run/.metadata", "run/iter_1/.metadata", "run/iter_1/x", "runaway"):
        storage.upload(tmp_path / "file", f"{bucket}/{name}")
    assert storage.sizes_below(f"{bucket}/run/") == {".metadata": 5, "iter_1/.metadata": 5, "iter_1/x": 5}
    assert storage.sizes_below(f"{bucket}/none") == {}
    with pytest.raises(IoFailure, match=r"memory://bucket/none/x"):
        storage.upload(tmp_path / "missing", f"{bucket}/none/x")


class _Listing:
    """A store that remembers what it said, as s3fs does."""

    def __init__(self, filesystem: Any):
        self._filesystem = filesystem
        self._said: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filesystem, name)

    def info(self, key: str) -> Any:
        return self._said.setdefault(key, dict(self._filesystem.info(key)))

    def ukey(self, key: str) -> str:
        return str(self.info(key)["created"])

    def invalidate_cache(self, parent: str) -> None:
        self._said = {key: said for key, said in self._said.items() if not key.startswith(parent)}


def test_a_fresh_fingerprint_sees_a_change_behind_an_old_listing(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = _Listing(fsspec.filesystem("memory"))
    monkeypatch.setattr(fsspec, "url_to_fs", lambda url: (listing, url.removeprefix("memory:/")))
    with fsspec.filesystem("memory").open("/bucket/file", "wb") as file:
        file.write(b"a")
    first = storage.fingerprint(f"{bucket}/file")
    with fsspec.filesystem("memory").open("/bucket/file", "wb") as file:
        file.write(b"b")
    assert storage.fingerprint(f"{bucket}/file") == first
    assert storage.fingerprint(f"{bucket}/file", refresh=True) != first


def test_a_directory_to_be_resumed_keeps_what_is_in_it(tmp_path: Path) -> None:
    for number in range(2):
        with pytest.raises(KeyboardInterrupt), storage.publish_directory(tmp_path / "out", resume=True) as partial:
            assert len(list(partial.path.iterdir())) == number
            (partial.path / str(number)).write_bytes(b"kept")
            raise KeyboardInterrupt
    with storage.publish_directory(tmp_path / "out", resume=True):
        pass
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0", "1"]
    with pytest.raises(KeyboardInterrupt), storage.publish_directory(tmp_path / "other", resume=True):
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "an empty directory is not left"


def test_ranges_of_many_remote_objects(bucket: str) -> None:
    for name in "ab":
        storage.write_bytes(f"{bucket}/{name}", f"0123{name}".encode())
    wanted = [(f"{bucket}/a", 0, 2), (f"{bucket}/b", 3, 9), (f"{bucket}/a", 4, 5)]
    assert storage.read_ranges(wanted) == [b"01", b"3b", b"a"]
    assert storage.read_ranges([]) == []
    with pytest.raises(NoInput):
        storage.read_ranges([(f"{bucket}/gone", 0, 1)])


def test_a_time_out_of_a_store_is_one_although_s3fs_fails_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """s3fs 2025 reads `args[0]` of the error, and a time-out has no arguments."""

    class Stalling:
        def tell(self) -> int:
            return 0

        def seek(self, position: int) -> int:
            return position

        def close(self) -> None:
            pass

        def read(self, size: int) -> bytes:
            try:
                raise TimeoutError
            except OSError as error:
                return bytes(error.args[0])

    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)
    stream = remote_stream.RemoteStream(Stalling(), lambda operation: storage.retry(operation, "s3://b/run.log"))
    with pytest.raises(IoFailure, match=r"^s3://b/run\.log: TimeoutError$"):
        stream.read(10)
