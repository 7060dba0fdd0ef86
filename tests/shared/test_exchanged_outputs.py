"""Outputs whose partial files or directories another process exchanges, or puts links into, while they are written."""

import os
from pathlib import Path

import pytest

from lt_shared.console import TryAgain
from lt_shared.files.local_files import publish_directory, publish_file

CREATE = os.O_WRONLY | os.O_CREAT


@pytest.mark.parametrize("depth", ["link", "a/link", "link/b"])
def test_no_link_is_followed_to_a_file(depth: str, tmp_path: Path) -> None:
    (tmp_path / "victim/b").mkdir(parents=True)
    precious = tmp_path / "victim" / depth.partition("link/")[2] / "file"
    precious.write_text("precious")
    with publish_directory(tmp_path / "out") as directory:
        link = directory.path / depth[: depth.index("link") + 4]
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(tmp_path / "victim")
        for flags in (CREATE, os.O_WRONLY, os.O_RDONLY, CREATE | os.O_TRUNC):
            with pytest.raises(NotADirectoryError):
                directory.open(f"{depth}/file", flags)
        with pytest.raises(NotADirectoryError):
            directory.open(f"{depth}/new/file", CREATE)
        with pytest.raises(NotADirectoryError):
            directory.unlink(f"{depth}/file")
        link.unlink()
    assert precious.read_text() == "precious"
    assert not list((tmp_path / "victim").rglob("new"))


@pytest.mark.parametrize("noticed", ["by the writer", "at the end"])
@pytest.mark.parametrize("exchanged", [True, False])
def test_a_failed_writer_deletes_its_own_file_only(exchanged: bool, noticed: str, tmp_path: Path) -> None:
    """Where locks do not work, another process may have put its own in the place."""
    partial = tmp_path / ".out.partial"

    def write() -> None:
        with publish_file(str(tmp_path / "out")) as file:
            file.write(b"ours")
            if exchanged:
                partial.unlink()
                partial.write_text("theirs")
            if not exchanged or noticed == "by the writer":
                raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, TryAgain)):
        write()
    assert partial.exists() == exchanged
    assert not exchanged or partial.read_text() == "theirs"
    assert not (tmp_path / "out").exists()
