"""A stranger has put something at the hidden name under which an output grows."""

import os
from pathlib import Path

import pytest
from stranger import Stranger

from lt_shared.console import CannotCreate
from lt_shared.files import resumable_files, storage

PLANTED_FILES = {
    "file": "echo mine > .out.partial; chmod 666 .out.partial",
    "private file": "echo mine > .out.partial; chmod 600 .out.partial",
    "link": "ln -s victim .out.partial",
    "dangling link": "ln -s nowhere .out.partial",
    "pipe": "mkfifo .out.partial",
    "directory": "mkdir .out.partial",
}
PLANTED_DIRECTORIES = {
    "file": "echo mine > .out.partial",
    "directory": "mkdir -m 777 .out.partial; ln -s ../victim .out.partial/config.json",
    "private directory": "mkdir -m 700 .out.partial",
    "link": "mkdir -m 777 his; ln -s his .out.partial",
    "pipe": "mkfifo .out.partial",
}


@pytest.fixture
def victim(stranger: Stranger) -> Path:
    path = stranger.shared / "victim"
    path.write_text("thesis")
    return path


@pytest.mark.parametrize("planted", PLANTED_FILES)
def test_a_planted_file_is_refused(planted: str, stranger: Stranger, victim: Path) -> None:
    stranger.run(PLANTED_FILES[planted])
    out = str(stranger.shared / "out")
    with pytest.raises(CannotCreate, match="out"), storage.publish(out) as file:
        file.write(b"x")
    with pytest.raises(CannotCreate, match="out"), resumable_files.resumable(out) as file:
        file.write(b"x")
    assert not resumable_files.holds(out, 3)
    assert not Path(out).exists()
    assert victim.read_text() == "thesis"
    assert not (stranger.shared / "nowhere").exists()


@pytest.mark.parametrize("planted", PLANTED_FILES)
def test_a_planted_journal_is_refused(planted: str, stranger: Stranger, victim: Path) -> None:
    stranger.run(PLANTED_FILES[planted])
    with pytest.raises(CannotCreate, match="out"), resumable_files.locked(f"{stranger.shared}/.out.partial", "out"):
        pass
    assert victim.read_text() == "thesis"


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("planted", PLANTED_DIRECTORIES)
def test_a_planted_directory_is_refused(planted: str, resume: bool, stranger: Stranger, victim: Path) -> None:
    stranger.run(PLANTED_DIRECTORIES[planted])
    with pytest.raises(CannotCreate, match="out"), storage.publish_directory(stranger.shared / "out", resume=resume):
        pass
    assert not (stranger.shared / "out").exists()
    assert victim.read_text() == "thesis"


def test_what_grows_is_private_until_it_is_published(stranger: Stranger) -> None:
    with storage.publish(stranger.shared / "out") as file:
        file.write(b"x")
        stranger.run("! cat .out.partial 2>/dev/null")
        stranger.run("! sh -c 'echo more >> .out.partial' 2>/dev/null")
    stranger.run("cat out > /dev/null")
    with storage.publish_directory(stranger.shared / "folder") as directory:
        stranger.run("! ls .folder.partial 2>/dev/null")
        (directory.path / "file").write_bytes(b"x")
    stranger.run("cat folder/file > /dev/null")


def test_a_directory_that_is_exchanged_while_it_is_written_is_not_published(stranger: Stranger) -> None:
    """In a directory that is not sticky anyone may rename anything."""
    stranger.shared.chmod(0o777)
    with (
        pytest.raises(Exception, match="another process"),
        storage.publish_directory(stranger.shared / "out", resume=True) as directory,
    ):
        stranger.run("mv .out.partial his; mkdir -m 777 .out.partial; ln -s ../victim .out.partial/config.json")
        descriptor = directory.open("release/config.json", os.O_WRONLY | os.O_CREAT)
        os.close(descriptor)
    assert not (stranger.shared / "victim").exists()
    assert not (stranger.shared / "out").exists()
    assert (stranger.shared / "his/release/config.json").exists()


@pytest.mark.parametrize("link", ["config.json", "release"])
def test_no_link_inside_is_followed(link: str, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    with storage.publish_directory(tmp_path / "out") as directory:
        target = tmp_path / "victim/config.json" if link == "config.json" else tmp_path / "victim"
        (directory.path / link).symlink_to(target)
        with pytest.raises(OSError):
            directory.open(link if link == "config.json" else "release/config.json", os.O_WRONLY | os.O_CREAT)
        (directory.path / link).unlink()
    assert list((tmp_path / "victim").iterdir()) == []
