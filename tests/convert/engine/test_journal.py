"""The journal of a conversion lists what is on the disk, and is used only as far as nobody else could have written it."""

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lt_convert.engine import journal
from lt_convert.engine.journal import JOURNAL, Journal, open_output
from lt_convert.tensors.checksums import Piece
from lt_shared.console import IoFailure
from lt_shared.files.local_files import PartialDirectory

FIRST = Piece("a/one", 0, 4, "ab", "t", 7)
SECOND = Piece("a/one", 4, 2, "cd", "", None)
THIRD = Piece("two", 0, 3, "ef", "u", 9)
LINES = ['["a/one", 0, 4, "ab", "t", 7]', '["a/one", 4, 2, "cd", "", null]', '["two", 0, 3, "ef", "u", 9]']


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[PartialDirectory]:
    (tmp_path / "partial").mkdir(mode=0o700)
    descriptor = os.open(tmp_path / "partial", os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    yield PartialDirectory(tmp_path / "partial", descriptor)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(descriptor)


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def left(directory: PartialDirectory, *lines: str, end: str = "\n") -> Path:
    """What a killed conversion left."""
    (directory.path / "a").mkdir()
    (directory.path / "a/one").write_bytes(b"123456")
    (directory.path / JOURNAL).write_text("\n".join(("identity", *lines)) + end)
    return directory.path / JOURNAL


def names(directory: PartialDirectory) -> list[str]:
    return sorted(str(path.relative_to(directory.path)) for path in directory.path.rglob("*"))


def test_a_new_journal_begins_with_the_identity(directory: PartialDirectory) -> None:
    found = Journal.open(directory, "identity")
    assert (found.finished, found.pending) == ({}, [])
    assert (directory.path / ".lt-convert.journal").read_bytes() == b"identity\n"


def test_what_is_listed_is_done(directory: PartialDirectory) -> None:
    path = left(directory, *LINES)
    found = Journal.open(directory, "identity")
    assert found.finished == {("a/one", 0): FIRST, ("a/one", 4): SECOND, ("two", 0): THIRD}
    assert found.pending == []
    assert path.read_text() == "\n".join(("identity", *LINES, ""))
    assert names(directory) == [JOURNAL, "a", "a/one"]


@pytest.mark.parametrize(
    ("lines", "end", "count"),
    [
        (LINES, "", 2),
        ([*LINES[:2], LINES[2][:10]], "", 2),
        ([LINES[0], "\0\0\0", LINES[2]], "\n", 1),
        ([LINES[0], "[1]", LINES[2]], "\n", 1),
        ([LINES[0], "5", LINES[2]], "\n", 1),
        ([LINES[0], "", LINES[2]], "\n", 1),
        ([], "\n", 0),
    ],
)
def test_a_journal_is_cut_before_its_first_bad_line(lines: list[str], end: str, count: int, directory: PartialDirectory) -> None:
    """What is appended later must not stand behind one."""
    path = left(directory, *lines, end=end)
    assert list(Journal.open(directory, "identity").finished.values()) == [FIRST, SECOND, THIRD][:count]
    assert path.read_text() == "\n".join(("identity", *LINES[:count], ""))


@pytest.mark.parametrize("content", [b"another\n", b"identity", b"identity2\n", b"\xff\n", b"\n", b""])
def test_another_plan_finds_an_empty_directory(content: bytes, directory: PartialDirectory) -> None:
    left(directory).write_bytes(content)
    assert Journal.open(directory, "identity").finished == {}
    assert names(directory) == [JOURNAL]
    assert (directory.path / JOURNAL).read_bytes() == b"identity\n"


def test_a_directory_without_a_journal_is_emptied(directory: PartialDirectory) -> None:
    left(directory).unlink()
    assert Journal.open(directory, "identity").finished == {}
    assert names(directory) == [JOURNAL]


def shared_folder(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


PLANTED = {
    "writable file": (lambda path: (path.touch(), path.chmod(0o664)), "can be written to by others (mode 0664)"),
    "writable folder": (shared_folder, "can be written to by others (mode 0777)"),
    "pipe": (os.mkfifo, "is neither a file nor a directory"),
    "link": (lambda path: path.symlink_to("one"), "is neither a file nor a directory"),
    "second name": (lambda path: os.link(path.parent.parent / "two", path), "has another name (a hard link)"),
}


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize("planted", PLANTED)
def test_what_others_may_have_planted_is_not_used(
    planted: str, directory: PartialDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    left(directory, *LINES)
    make, reason = PLANTED[planted]
    name = "a/planted"
    if planted == "second name":
        (directory.path / "two").touch()
    make(directory.path / name)
    assert Journal.open(directory, "identity").finished == {}
    assert names(directory) == [JOURNAL]
    said = capsys.readouterr().err.replace("/two ", "/a/planted ")
    assert f"{directory.path}/{name} {reason}: not used, the conversion starts over" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_a_file_of_another_user_is_not_used(directory: PartialDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    left(directory, *LINES)
    os.chown(directory.path / "a/one", 1001, 1001)
    (directory.path / "a/one").chmod(0o644)
    assert Journal.open(directory, "identity").finished == {}
    assert f"{directory.path}/a/one belongs to another user (uid 1001): not used" in capsys.readouterr().err


def test_files_have_the_mode_of_the_umask(directory: PartialDirectory) -> None:
    """Under a umask that lets the group write, what the conversion made itself can be written to by the group."""
    left(directory, *LINES)
    (directory.path / "a/one").chmod(0o664)
    before = os.umask(0o002)
    try:
        assert len(Journal.open(directory, "identity").finished) == 3
    finally:
        os.umask(before)


def test_pieces_are_synced_before_they_are_listed(directory: PartialDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    left(directory, LINES[0])
    (directory.path / "two").write_bytes(b"123")
    calls: list[tuple[str, int]] = []
    fdatasync = os.fdatasync

    def sync(descriptor: int) -> None:
        listed = (directory.path / JOURNAL).read_bytes().count(b"\n")
        calls.append((os.readlink(f"/proc/self/fd/{descriptor}"), listed))
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    opened = Journal.open(directory, "identity")
    opened.pending = [SECOND, Piece("two", 9, 1, "x", "", 1), THIRD]
    opened.sync()
    assert sorted(calls) == [(f"{directory.path}/a/one", 2), (f"{directory.path}/two", 2)]
    assert (directory.path / JOURNAL).read_text().splitlines() == [
        "identity",
        LINES[0],
        LINES[1],
        '["two", 9, 1, "x", "", 1]',
        LINES[2],
    ]
    assert opened.pending == []
    assert opened.finished[("a/one", 0)] == FIRST
    assert opened.finished[("two", 0)] == THIRD
    again = Journal.open(directory, "identity")
    assert again.finished == opened.finished and len(again.finished) == 4


def test_pieces_are_listed_every_few_seconds(directory: PartialDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    left(directory)
    (directory.path / "two").touch()
    clock = [100.0]
    monkeypatch.setattr(journal.time, "monotonic", lambda: clock[0])
    opened = Journal.open(directory, "identity")
    opened.synced = 100.0
    for now, piece, waiting in ((104.9, FIRST, [FIRST]), (105.0, SECOND, []), (109.9, THIRD, [THIRD]), (110.0, FIRST, [])):
        clock[0] = now
        opened.add(piece)
        assert opened.pending == waiting
    assert opened.synced == 110.0


def test_a_disk_that_fails_is_named(directory: PartialDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    left(directory)

    def fail(*arguments: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    opened = Journal.open(directory, "identity")
    opened.pending = [FIRST]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(IoFailure) as caught:
            opened.sync()
    assert str(caught.value) == f"{directory.path}/a/one: input/output error"
    assert opened.pending == [FIRST]
    assert (directory.path / JOURNAL).read_bytes() == b"identity\n"
    with monkeypatch.context() as patch:
        patch.setattr(json, "dumps", fail)
        with pytest.raises(OSError, match="Input/output error"):
            opened.sync()
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(IoFailure) as caught:
            open_output(directory, "a/one", 7)
        with pytest.raises(OSError, match="Input/output error"):
            Journal.open(directory, "identity")
    assert str(caught.value) == f"{directory.path}/a/one: input/output error"


def test_a_journal_that_cannot_be_written_is_named(directory: PartialDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full is always full."""
    left(directory)
    opened = Journal.open(directory, "identity")
    opened.pending = [FIRST]
    true = PartialDirectory.open

    def full(self: PartialDirectory, name: str, flags: int) -> int:
        return os.open("/dev/full", os.O_WRONLY) if name == JOURNAL else true(self, name, flags)

    monkeypatch.setattr(PartialDirectory, "open", full)
    for write in (opened.sync, lambda: Journal.open(directory, "another")):
        monkeypatch.setattr(journal, "_lines", lambda directory, name: [b"identity"])
        with pytest.raises(IoFailure) as caught:
            write()
        assert str(caught.value) == f"{directory.path}/{JOURNAL}: no space left on device"


def test_outputs_have_their_size_at_once(directory: PartialDirectory) -> None:
    left(directory)
    open_output(directory, "a/new", 10)
    assert (directory.path / "a/new").read_bytes() == bytes(10)
    open_output(directory, "deep/er/new", 3)
    assert (directory.path / "deep/er/new").read_bytes() == bytes(3)
    open_output(directory, "a/one", 8)
    assert (directory.path / "a/one").read_bytes() == b"123456\0\0"
    open_output(directory, "a/one", 2)
    assert (directory.path / "a/one").read_bytes() == b"12"
    assert stat.S_ISREG((directory.path / "a/one").stat().st_mode)
