"""What a killed process leaves is resumed from the last byte that was recorded, by one process at a time, and by nobody else."""

import fcntl
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from lt_shared.console import CannotCreate, IoFailure, TryAgain
from lt_shared.files import ownership, resumable_files


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.fixture
def out(tmp_path: Path) -> str:
    return str(tmp_path / "out")


def left(out: str, content: bytes = b"0123456789", mode: int = 0o600) -> Path:
    """The partial file of a killed process."""
    path = Path(out).parent / ".out.partial"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def names(out: str) -> list[str]:
    return sorted(os.listdir(os.path.dirname(out)))


def test_a_new_output_is_made_anew(out: str) -> None:
    left(out)
    with resumable_files.resumable(out) as file:
        assert file.tell() == 0
        file.write(b"new")
        assert not os.path.exists(out)
    assert Path(out).read_bytes() == b"new"
    assert names(out) == ["out"]


def test_a_resumed_output_goes_on_after_what_was_recorded(out: str) -> None:
    left(out)
    with resumable_files.resumable(out, 4) as file:
        assert file.tell() == 4
        assert os.fstat(file.fileno()).st_size == 4
        file.write(b"new")
    assert Path(out).read_bytes() == b"0123new"
    assert names(out) == ["out"]


@pytest.mark.parametrize("opened", [resumable_files.resumable, resumable_files.spool])
def test_an_exception_keeps_the_partial_file(out: str, opened: object) -> None:
    with pytest.raises(KeyboardInterrupt), opened(out) as file:  # type: ignore[operator]
        file.write(b"half")
        raise KeyboardInterrupt
    assert names(out) == [".out.partial"]
    assert (Path(out).parent / ".out.partial").read_bytes() == b"half"
    assert (Path(out).parent / ".out.partial").stat().st_mode & 0o777 == 0o600


def test_a_spool_is_read_and_deleted(out: str) -> None:
    left(out)
    with resumable_files.spool(out, 4) as file:
        file.write(b"new")
        file.seek(0)
        assert file.read() == b"0123new"
    assert names(out) == []
    with resumable_files.spool(out) as file:
        assert file.read() == b""
    assert names(out) == []


@pytest.mark.parametrize("opened", [resumable_files.resumable, resumable_files.spool])
def test_small_writes_are_collected(out: str, opened: object) -> None:
    """A write of a few bytes that goes to a shared filesystem by itself takes a millisecond there. A MiB is collected."""
    with opened(out) as file:  # type: ignore[operator]
        for _ in range(1023):
            file.write(bytes(1024))
        assert os.fstat(file.fileno()).st_size == 0
        for _ in range(2):
            file.write(bytes(1024))
        assert os.fstat(file.fileno()).st_size >= 1023 << 10


def test_what_is_synced_has_been_written(out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor)) or fsync(descriptor))
    with pytest.raises(KeyboardInterrupt), resumable_files.resumable(out) as file:
        file.write(b"1234")
        resumable_files.sync(file)
        assert [(status.st_ino, status.st_size) for status in synced] == [(os.fstat(file.fileno()).st_ino, 4)]
        raise KeyboardInterrupt


def test_what_is_left(out: str) -> None:
    assert resumable_files.holds(out, 0)
    assert resumable_files.holds(out, 1) is False
    left(out)
    assert [resumable_files.holds(out, size) for size in (0, 1, 9, 10, 11)] == [True, True, True, True, False]


def test_what_is_left_is_compared_with_the_checksum(out: str) -> None:
    left(out)
    for size in (1, 9, 10):
        assert resumable_files.holds(out, size, zlib.crc32(b"0123456789"[:size]))
        assert not resumable_files.holds(out, size, zlib.crc32(b"x123456789"[:size]))
        assert not resumable_files.holds(out, size, 0)
    assert not resumable_files.holds(out, 11, zlib.crc32(b"0123456789"))


def test_what_others_could_have_written_is_not_used(out: str) -> None:
    path = left(out, mode=0o620)
    assert not resumable_files.holds(out, 4)
    assert not resumable_files.holds(out, 4, zlib.crc32(b"0123"))
    with pytest.raises(CannotCreate) as caught, resumable_files.resumable(out, 4):
        pass
    assert str(caught.value) == f"{path}: can be written to by others (mode 0620)"
    assert caught.value.hint == "remove it, and run the command again"
    assert path.read_bytes() == b"0123456789"
    with resumable_files.resumable(out):
        pass
    assert Path(out).read_bytes() == b""


def test_a_link_is_not_followed(out: str, tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"0123456789")
    (tmp_path / ".out.partial").symlink_to("victim")
    assert resumable_files.exists(out)
    assert not resumable_files.holds(out, 4)
    with pytest.raises(CannotCreate, match="is not a regular file"), resumable_files.resumable(out, 4):
        pass
    resumable_files.discard(out)
    assert (tmp_path / "victim").read_bytes() == b"0123456789"
    assert (tmp_path / ".out.partial").is_symlink()
    (tmp_path / "victim").unlink()
    assert resumable_files.exists(out)


def test_whether_something_is_left(out: str) -> None:
    assert not resumable_files.exists(out)
    left(out)
    assert resumable_files.exists(out)


def test_less_than_was_recorded_is_an_error(out: str) -> None:
    path = left(out)
    with pytest.raises(IoFailure) as caught, resumable_files.resumable(out, 11):
        pass
    assert str(caught.value) == f"{path}: shorter than the 11 bytes that were written"
    assert path.read_bytes() == b"0123456789"
    with resumable_files.resumable(out, 10):
        pass
    assert Path(out).read_bytes() == b"0123456789"


def test_nothing_to_resume_is_an_error(out: str, tmp_path: Path) -> None:
    with pytest.raises(CannotCreate, match="no such directory"), resumable_files.resumable(out, 4):
        pass
    with pytest.raises(CannotCreate) as caught, resumable_files.resumable(str(tmp_path / "none/out")):
        pass
    assert caught.value.hint == f"mkdir -p {tmp_path}/none"


def locks(path: str | Path) -> bool:
    """Whether somebody holds a lock on the file, as another process would find out."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@pytest.mark.parametrize("kept", [0, 4])
def test_a_second_writer_is_kept_out(out: str, kept: int) -> None:
    path = left(out)
    with resumable_files.resumable(out, kept):
        assert locks(path)
        for second in (0, 4):
            with pytest.raises(TryAgain, match="another process is writing it"), resumable_files.resumable(out, second):
                pass
        resumable_files.discard(out)
        assert path.exists()
    assert names(out) == ["out"]


def test_what_nobody_writes_is_discarded(out: str) -> None:
    resumable_files.discard(out)
    left(out)
    resumable_files.discard(out)
    assert names(out) == []


def test_what_another_process_has_begun_meanwhile_is_not_discarded(out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It published the file that was opened here, and has begun the next one."""
    path = left(out)
    lock = resumable_files.lock

    def publish_first(descriptor: int, name: str) -> None:
        path.rename(out)
        left(out, b"next")
        lock(descriptor, name)

    monkeypatch.setattr(resumable_files, "lock", publish_first)
    resumable_files.discard(out)
    assert path.read_bytes() == b"next"
    assert Path(out).read_bytes() == b"0123456789"


def test_a_published_file_becomes_partial_again(out: str) -> None:
    Path(out).write_bytes(b"published")
    Path(out).chmod(0o644)
    resumable_files.withdraw(out)
    assert names(out) == [".out.partial"]
    path = Path(out).parent / ".out.partial"
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"published", 0o600)
    with pytest.raises(IoFailure, match="out: no such file"):
        resumable_files.withdraw(out)


def test_a_link_in_the_place_of_a_published_file_does_not_open_its_target(out: str, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"x")
    (tmp_path / "target").chmod(0o644)
    Path(out).symlink_to("target")
    with pytest.raises((IoFailure, NotImplementedError)):
        resumable_files.withdraw(out)
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o644


def appended(file: IO[bytes], content: bytes) -> bytes:
    """What others see after a write that is not flushed."""
    file.seek(0, os.SEEK_END)
    file.write(content)
    return os.pread(file.fileno(), 100, 0)


def test_a_locked_file_is_made_and_kept(out: str) -> None:
    with resumable_files.locked(out, "the output") as file:
        assert locks(out)
        assert os.stat(out).st_mode & 0o777 == 0o600
        assert appended(file, b"one") == b"one"
        with pytest.raises(TryAgain, match="the output: another process"), resumable_files.locked(out, "the output"):
            pass
    assert not locks(out)
    with resumable_files.locked(out, "the output") as file:
        assert file.read() == b"one"
        assert appended(file, b"two") == b"onetwo"
        os.unlink(out)
    assert names(out) == []


def test_a_locked_file_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in (b"", b"x"):
        with resumable_files.locked("state", "state") as file:
            assert file.read() == expected
            file.write(b"x")


@pytest.mark.parametrize("given", ["out", "the whole path"])
def test_a_mount_without_modes_is_looked_at_where_the_file_is(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file looks as if others could write to it, and so does a new one there; elsewhere a new one does not."""
    (tmp_path / "out").write_bytes(b"own")
    (tmp_path / "out").chmod(0o666)
    found = os.stat(tmp_path / "out")
    monkeypatch.chdir(tmp_path if given == "out" else "/")
    there = "." if given == "out" else str(tmp_path)
    monkeypatch.setattr(ownership, "_new_file", lambda folder, mode=0o600: found if folder == there else None)
    with resumable_files.locked("out" if given == "out" else str(tmp_path / "out"), "out") as file:
        assert file.read() == b"own"


def test_what_others_could_have_written_is_locked_anew(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(out).write_bytes(b"his")
    Path(out).chmod(0o606)
    with resumable_files.locked(out, "out") as file:
        assert file.read() == b""
        assert os.stat(out).st_mode & 0o777 == 0o600
    assert f"{out}: can be written to by others (mode 0606): not used" in capsys.readouterr().err


def test_a_lock_on_a_file_that_is_gone_is_taken_again(out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder deleted it while this process waited."""
    Path(out).write_bytes(b"old")
    Path(out).chmod(0o600)
    lock = resumable_files.lock
    seen = []

    def delete_first(descriptor: int, name: str) -> None:
        if not seen:
            os.unlink(out)
        seen.append(name)
        lock(descriptor, name)

    monkeypatch.setattr(resumable_files, "lock", delete_first)
    with resumable_files.locked(out, "out") as file:
        assert file.read() == b""
        assert os.path.samestat(os.fstat(file.fileno()), os.stat(out))
    assert seen == ["out", "out"]


def test_a_file_that_vanishes_before_it_is_opened_is_made(out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(out).touch(0o600)
    open_own = resumable_files.open_own

    def vanish(path: str, flags: int, name: str) -> int:
        os.unlink(path)
        return open_own(path, flags, name)

    monkeypatch.setattr(resumable_files, "open_own", vanish)
    with resumable_files.locked(out, "out") as file:
        assert appended(file, b"x") == b"x"


def test_a_file_that_cannot_be_locked(tmp_path: Path) -> None:
    path = str(tmp_path / "none/state")
    with pytest.raises(CannotCreate, match="the output: no such dir") as caught, resumable_files.locked(path, "the output"):
        pass
    assert caught.value.hint == f"mkdir -p {tmp_path}/none"


def test_a_write_that_failed_is_not_tried_again(out: str) -> None:
    """Closing the file would, and hide the first error. /dev/full is always full."""
    left(out)
    with pytest.raises(IoFailure, match="out: no space left on device"), resumable_files.resumable(out, 4) as file:
        file.write(b"lost")
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, file.fileno())
        os.close(full)
        file.flush()
