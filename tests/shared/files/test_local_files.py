"""The system calls by which an output is published: which come first, what they are given, and what each of them may answer."""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lt_shared.console import CannotCreate, IoFailure, TryAgain
from lt_shared.files import local_files, ownership
from lt_shared.files.local_files import publish_directory, publish_file


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Under which every bit of a mode is kept."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: str | Path | int) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def fails(monkeypatch: pytest.MonkeyPatch, name: str, number: int, match: str = "") -> None:
    """The system call answers with an error, where its first argument ends with `match`."""
    real = getattr(os, name)

    def call(path: Any, *arguments: Any, **more: Any) -> Any:
        if str(path).endswith(match):
            raise OSError(number, os.strerror(number))
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, name, call)


def recorded(monkeypatch: pytest.MonkeyPatch, directory: Path) -> list[tuple[str, ...]]:
    """The syncs, with the size of a file, and the renames below `directory`, as they happen."""
    calls: list[tuple[str, ...]] = []
    fsync = os.fsync

    def shown(path: str | Path) -> str:
        return os.path.relpath(path, directory)

    def sync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        size = (str(status.st_size),) if stat.S_ISREG(status.st_mode) else ()
        calls.append(("fsync", shown(os.readlink(f"/proc/self/fd/{descriptor}")), *size))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    for name in ("rename", "replace"):
        real = getattr(os, name)

        def move(source: str, target: str, real: Any = real) -> None:
            calls.append(("rename", shown(source), shown(target)))
            real(source, target)

        monkeypatch.setattr(os, name, move)
    return calls


def test_a_file_is_durable_before_it_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded(monkeypatch, tmp_path)
    with publish_file(str(tmp_path / "out")) as file:
        file.write(b"12345")
    assert calls == [("fsync", ".out.partial", "5"), ("rename", ".out.partial", "out"), ("fsync", ".")]


def test_a_directory_is_durable_before_it_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old").touch()
    calls = recorded(monkeypatch, tmp_path)
    with publish_directory(tmp_path / "out", replace=True) as directory:
        (directory.path / "deep/er").mkdir(parents=True)
        (directory.path / "deep/er/file").write_bytes(b"123")
        (directory.path / "file").write_bytes(b"12345")
    before, after = calls[:-3], calls[-3:]
    assert sorted(before) == [
        ("fsync", ".out.partial"),
        ("fsync", ".out.partial/deep"),
        ("fsync", ".out.partial/deep/er"),
        ("fsync", ".out.partial/deep/er/file", "3"),
        ("fsync", ".out.partial/file", "5"),
    ]
    assert after == [("rename", "out", ".out.replaced"), ("rename", ".out.partial", "out"), ("fsync", ".")]
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_directories_that_cannot_be_synced(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network filesystems."""
    fsync = os.fsync

    def sync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, "cannot")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    with publish_file(str(tmp_path / "out")):
        pass
    assert names(tmp_path) == ["out"]


def test_a_sync_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, "fsync", errno.EIO)
    with pytest.raises(IoFailure, match="out: input/output error"), publish_file(str(tmp_path / "out")):
        pass
    with pytest.raises(OSError, match="Input/output error"):
        local_files.sync_directory(tmp_path)
    assert names(tmp_path) == []


def test_writes_are_collected_up_to_a_mebibyte(tmp_path: Path) -> None:
    with publish_file(str(tmp_path / "out")) as file:
        for _ in range(1023):
            file.write(bytes(1024))
        assert os.fstat(file.fileno()).st_size == 0
        for _ in range(2):
            file.write(bytes(1024))
        assert os.fstat(file.fileno()).st_size >= 1023 << 10


@pytest.mark.usefixtures("open_umask")
def test_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Private until it is published, from its first moment; then as the umask says."""
    seen = []
    lock = local_files.lock
    monkeypatch.setattr(local_files, "lock", lambda descriptor, name: (seen.append(mode(descriptor)), lock(descriptor, name))[1])
    with publish_file(str(tmp_path / "file")):
        pass
    with publish_file(str(tmp_path / "given"), 0o640):
        pass
    (tmp_path / ".folder.partial").mkdir(mode=0o755)
    with publish_directory(tmp_path / "folder") as directory:
        assert mode(directory.path) == 0o700
        os.close(directory.open("made", os.O_WRONLY | os.O_CREAT))
    with publish_directory(tmp_path / "new"):
        pass
    assert seen == [0o600, 0o600, 0o755, 0o700]
    found = {name: mode(tmp_path / name) for name in ("file", "given", "folder", "folder/made", "new")}
    assert found == {"file": 0o666, "given": 0o640, "folder": 0o777, "folder/made": 0o666, "new": 0o777}


def test_the_group_of_a_directory_is_inherited(tmp_path: Path) -> None:
    tmp_path.chmod(0o2755)
    with publish_directory(tmp_path / "out"):
        pass
    assert mode(tmp_path / "out") & stat.S_ISGID


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_mounts_that_refuse_modes(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, "fchmod", number)
    with publish_file(str(tmp_path / "out")):
        pass
    assert names(tmp_path) == ["out"]


def test_a_mode_that_cannot_be_set_for_another_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, "fchmod", errno.EIO)
    with pytest.raises(IoFailure, match="out: input/output error"), publish_file(str(tmp_path / "out")):
        pass


def test_the_umask_is_not_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o037)
    try:
        monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("another thread would notice"))
        assert local_files.umask() == 0o037
    finally:
        monkeypatch.undo()
        os.umask(before)


def test_the_umask_where_proc_is_not_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that another thread creates meanwhile is open to others."""
    given = []
    umask = os.umask
    before = umask(0o027)
    try:
        monkeypatch.setattr("builtins.open", lambda *arguments: (_ for _ in ()).throw(FileNotFoundError()))
        monkeypatch.setattr(os, "umask", lambda mask: given.append(mask) or umask(mask))
        assert local_files.umask() == 0o027
        monkeypatch.undo()
        assert given == [0o077, 0o027]
        assert umask(0o027) == 0o027
    finally:
        umask(before)


def once(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, before: Any) -> list[str]:
    """Something happens just before the first call of a function; returns the calls."""
    real, calls = getattr(module, name), []

    def call(*arguments: Any, **more: Any) -> Any:
        calls.append(name)
        if len(calls) == 1:
            before()
        return real(*arguments, **more)

    monkeypatch.setattr(module, name, call)
    return calls


@pytest.mark.parametrize("left", [False, True])
def test_a_partial_file_that_vanishes_is_made_again(left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer deleted it, before it was opened here, or between that and the lock."""
    partial = tmp_path / ".out.partial"
    if left:
        partial.touch(0o600)
        calls = once(monkeypatch, local_files, "open_own", partial.unlink)
    else:
        calls = once(monkeypatch, local_files, "lock", partial.unlink)
    with publish_file(str(tmp_path / "out")) as file:
        file.write(b"x")
        assert os.path.samestat(os.fstat(file.fileno()), partial.stat())
    assert (tmp_path / "out").read_bytes() == b"x"
    assert calls


def test_a_partial_directory_that_vanishes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = tmp_path / ".out.partial"
    once(monkeypatch, os, "open", partial.rmdir)
    with publish_directory(tmp_path / "out"):
        assert partial.is_dir()
    monkeypatch.undo()
    once(monkeypatch, local_files, "lock", (tmp_path / ".next.partial").rmdir)
    with publish_directory(tmp_path / "next"):
        pass
    assert names(tmp_path) == ["next", "out"]


def own(path: Path, flags: int = os.O_RDWR) -> int:
    return local_files.open_own(str(path), flags, "the output")


def test_an_own_file_is_opened_as_asked(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o600)
    for flags in (os.O_RDWR, os.O_RDONLY, os.O_WRONLY):
        descriptor = own(tmp_path / "file", flags)
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == flags
        os.close(descriptor)
    with pytest.raises(FileNotFoundError):
        own(tmp_path / "missing")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "."):
        with pytest.raises(CannotCreate) as caught:
            own(tmp_path / name)
        assert str(caught.value) == f"the output: {tmp_path / name} is not a regular file"
        assert caught.value.hint == "remove it if it is not needed, or choose another output"


@pytest.mark.parametrize("kind", ["link", "pipe", "file"])
def test_a_file_that_is_exchanged_while_it_is_opened(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    (tmp_path / "victim").touch(0o600)
    path.touch(0o600)

    def exchange() -> None:
        path.rename(tmp_path / "old")
        if kind == "link":
            path.symlink_to("victim")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.touch(0o600)

    once(monkeypatch, ownership, "belongs_to_other", exchange)
    if kind == "link":
        with pytest.raises(OSError, match="symbolic links"):
            own(path, os.O_RDONLY)
    else:
        with pytest.raises(CannotCreate) as caught:
            own(path, os.O_RDONLY)
        assert str(caught.value) == f"the output: {path} was exchanged while it was opened"


def test_whether_a_file_is_where_it_was(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        assert local_files.is_at(file.fileno(), tmp_path / "file") is True
        (tmp_path / "file").rename(tmp_path / "other")
        assert local_files.is_at(file.fileno(), tmp_path / "file") is False
        (tmp_path / "file").symlink_to("other")
        assert local_files.is_at(file.fileno(), tmp_path / "file") is False


CREATE = os.O_WRONLY | os.O_CREAT


def test_files_in_a_partial_directory(tmp_path: Path) -> None:
    with publish_directory(tmp_path / "out") as directory:
        for name in ("top", "a/b/c", "a/b/d", "a/e"):
            os.close(directory.open(name, CREATE))
        directory.unlink("a/b/d")
        directory.unlink("top")
        for name in ("x/y/z", "a/x"):
            with pytest.raises(FileNotFoundError):
                directory.open(name, os.O_WRONLY)
            with pytest.raises(FileNotFoundError):
                directory.unlink(name)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "out",
        "out/a",
        "out/a/b",
        "out/a/b/c",
        "out/a/e",
    ]


def test_only_directories_are_entered(tmp_path: Path) -> None:
    """A pipe in the place of one would be waited for."""
    with publish_directory(tmp_path / "out") as directory:
        os.mkfifo(directory.path / "pipe")
        with pytest.raises(NotADirectoryError):
            directory.open("pipe/file", CREATE)
        (directory.path / "pipe").unlink()


def test_emptying_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "victim/deep").mkdir(parents=True)
    left = tmp_path / ".out.partial"
    left.mkdir()
    (left / "deep/er").mkdir(parents=True)
    (left / "file").touch()
    (left / "link").symlink_to("../victim")
    with publish_directory(tmp_path / "out"):
        assert names(left) == []
    assert (tmp_path / "victim/deep").is_dir()


@pytest.mark.parametrize("left_mode", [0o700, 0o770, 0o707])
def test_only_what_nobody_else_could_change_is_resumed(left_mode: int, tmp_path: Path) -> None:
    left = tmp_path / ".out.partial"
    left.mkdir()
    (left / "file").touch()
    left.chmod(left_mode)
    with publish_directory(tmp_path / "out", resume=True):
        assert mode(left) == 0o700
    assert names(tmp_path / "out") == (["file"] if left_mode == 0o700 else [])


def test_directories_above_an_output_are_made(tmp_path: Path) -> None:
    with publish_directory(tmp_path / "a/b/out"):
        pass
    assert (tmp_path / "a/b/out").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(CannotCreate, match="out: exists and is not a directory"), publish_directory(tmp_path / "file/out"):
        pass


def test_a_partial_directory_that_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (lambda path: path.touch(), lambda path: path.symlink_to(tmp_path)):
        make(tmp_path / ".out.partial")
        with pytest.raises(CannotCreate) as caught, publish_directory(tmp_path / "out"):
            pass
        assert str(caught.value) == f"{tmp_path}/out: {tmp_path}/.out.partial is not a directory"
        assert caught.value.hint == "remove it, or choose another output"
        (tmp_path / ".out.partial").unlink()
    fails(monkeypatch, "open", errno.EIO, ".out.partial")
    with pytest.raises(CannotCreate, match="out: Input/output error"), publish_directory(tmp_path / "out"):
        pass


@pytest.mark.parametrize("moment", ["before", "after"])
def test_another_writer_is_noticed(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where locks do not work, another process may exchange the directory at any time."""
    publish = local_files.publish_prepared_directory

    def exchange(prepared: Path, target: Path) -> None:
        publish(prepared, target)
        target.rename(tmp_path / "other")
        target.mkdir()

    if moment == "after":
        monkeypatch.setattr(local_files, "publish_prepared_directory", exchange)
    with pytest.raises(TryAgain, match="out: another process is writing it"), publish_directory(tmp_path / "out"):
        if moment == "before":
            (tmp_path / ".out.partial").rename(tmp_path / "other")
            (tmp_path / ".out.partial").mkdir()
    assert (tmp_path / "other").is_dir()
    assert (tmp_path / "out").exists() == (moment == "after")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_another_users_partial_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".out.partial").mkdir()
    os.chown(tmp_path / ".out.partial", 1001, 1001)
    with pytest.raises(CannotCreate) as caught, publish_directory(tmp_path / "out"):
        pass
    assert str(caught.value) == f"{tmp_path}/out: {tmp_path}/.out.partial belongs to another user (uid 1001)"
    assert caught.value.hint == "remove it if it is not needed, or choose another output"


def test_a_second_writer_has_no_descriptor_left(tmp_path: Path) -> None:
    with publish_file(str(tmp_path / "out")), publish_directory(tmp_path / "folder"):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(2):
            with pytest.raises(TryAgain), publish_file(str(tmp_path / "out")):
                pass
            with pytest.raises(TryAgain), publish_directory(tmp_path / "folder"):
                pass
        assert len(os.listdir("/proc/self/fd")) == before


LEFT = {
    "folder": lambda path: (path / "deep").mkdir(parents=True),
    "file": lambda path: path.touch(),
    "link": lambda path: path.symlink_to("victim"),
    "dangling link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("kind", LEFT)
@pytest.mark.parametrize("older", [False, True])
def test_what_a_killed_exchange_left_is_deleted(kind: str, older: bool, tmp_path: Path) -> None:
    (tmp_path / "victim/deep").mkdir(parents=True)
    LEFT[kind](tmp_path / ".out.replaced")
    if older:
        (tmp_path / "out/old").mkdir(parents=True)
    with publish_directory(tmp_path / "out", replace=True) as directory:
        (directory.path / "new").touch()
    assert names(tmp_path) == ["out", "victim"]
    assert names(tmp_path / "out") == ["new"]
    assert names(tmp_path / "victim") == ["deep"]


def test_an_output_may_replace_a_link_to_a_directory(tmp_path: Path) -> None:
    (tmp_path / "victim/deep").mkdir(parents=True)
    (tmp_path / "out").symlink_to("victim")
    with publish_directory(tmp_path / "out", replace=True):
        pass
    assert not (tmp_path / "out").is_symlink()
    assert names(tmp_path) == ["out", "victim"]
    assert names(tmp_path / "victim") == ["deep"]


def test_what_cannot_be_deleted_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the error because of which it is deleted, nor that the new directory is there."""
    (tmp_path / "out/old").mkdir(parents=True)
    fails(monkeypatch, "rmdir", errno.EBUSY)
    with publish_directory(tmp_path / "out", replace=True) as directory:
        (directory.path / "new").touch()
    assert names(tmp_path / "out") == ["new"]
    with pytest.raises(KeyboardInterrupt), publish_directory(tmp_path / "other"):
        raise KeyboardInterrupt
    monkeypatch.undo()
    shutil.rmtree(tmp_path / ".out.replaced", ignore_errors=True)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EIO, errno.EBADF])
def test_filesystems_without_locks(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, "no lock")

    monkeypatch.setattr(fcntl, "flock", flock)
    expected = (
        contextlib.nullcontext() if number not in (errno.EIO, errno.EBADF) else pytest.raises(CannotCreate, match="no lock")
    )
    with expected, publish_file(str(tmp_path / "out")):
        pass
