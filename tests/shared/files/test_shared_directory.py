"""A partial directory that several processes fill: beside each other, but never beside a process that writes the output alone."""

import os
from pathlib import Path

import pytest

from lt_shared.console import CannotCreate, TryAgain
from lt_shared.files import shared_directory, storage


def test_several_have_it_and_one_publishes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with shared_directory.shared_directory(out) as one, shared_directory.shared_directory(out) as other:
        for number, directory in enumerate((one, other)):
            with open(directory.open(f"deep/{number}", os.O_WRONLY | os.O_CREAT), "wb") as file:
                file.write(b"content")
        with pytest.raises(TryAgain, match="another process is writing it"), storage.publish_directory(out):
            pass
        assert not shared_directory.is_published(one)
        shared_directory.publish_shared(one, out)
        assert shared_directory.is_published(one) and shared_directory.is_published(other)
    assert sorted(path.name for path in (out / "deep").iterdir()) == ["0", "1"]
    assert (out.stat().st_mode & 0o777) == 0o777 & ~umask()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_process_that_writes_alone_keeps_them_out(tmp_path: Path) -> None:
    with (
        storage.publish_directory(tmp_path / "out"),
        pytest.raises(TryAgain, match="another process is writing it"),
        shared_directory.shared_directory(tmp_path / "out"),
    ):
        pass


def test_an_occupied_place(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_bytes(b"")
    with shared_directory.shared_directory(tmp_path / "out") as directory:
        with pytest.raises(CannotCreate, match="exists and is not empty"):
            shared_directory.publish_shared(directory, tmp_path / "out")
        shared_directory.publish_shared(directory, tmp_path / "out", replace=True)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_directory_that_others_may_write_to(tmp_path: Path) -> None:
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial").chmod(0o757)
    with pytest.raises(CannotCreate, match="can be written to by others"), shared_directory.shared_directory(tmp_path / "out"):
        pass
    (tmp_path / ".out.partial").chmod(0o700)
    with shared_directory.shared_directory(tmp_path / "out"):
        pass
    (tmp_path / ".link.partial").symlink_to(tmp_path / ".out.partial")
    with pytest.raises(CannotCreate, match="is not a directory"), shared_directory.shared_directory(tmp_path / "link"):
        pass
