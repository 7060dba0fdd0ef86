"""Files under names that everybody knows are this run's own, or they are neither read nor written."""

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lt_shared.console import CannotCreate, IoFailure
from lt_train.process import run_files


def overwrite(path: Path) -> None:
    with os.fdopen(run_files.open_descriptor(path, os.O_WRONLY), "w") as file:
        file.write("ours")


def append(path: Path) -> None:
    with run_files.AppendedLines(path) as file:
        assert file.write("ours\n")


USES: dict[str, Callable[[Path], object]] = {"overwrite": overwrite, "append": append, "read": run_files.read_content}


@pytest.mark.parametrize("use", USES)
def test_a_file_with_a_second_name_is_left_alone(use: str, tmp_path: Path) -> None:
    """A hard link, which its owner's other file looks the same as: what is written here would be written there."""
    victim, planted = tmp_path / "victim", tmp_path / "run/train.log"
    planted.parent.mkdir()
    victim.write_text("precious")
    os.link(victim, planted)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CannotCreate, match=r"run/train\.log: is not a file of its own, it has another name elsewhere"):
        USES[use](planted)
    assert len(os.listdir("/proc/self/fd")) == before
    assert victim.read_text() == "precious"
    victim.unlink()
    USES[use](planted)


def test_a_file_of_its_own_is_read_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    append(path)
    append(path)
    assert run_files.read_content(path) == b"ours\nours\n"
    with pytest.raises(FileNotFoundError):
        run_files.read_content(tmp_path / "none")


@pytest.mark.parametrize("left", [b"to", b"\0\0", b"whole\nto", b"\xff"])
def test_what_is_left_of_a_line_stays_one_of_its_own(left: bytes, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(left)
    append(path)
    append(path)
    assert path.read_bytes() == left + b"\nours\nours\n"


def test_lines_without_room_are_left_out_and_counted(tmp_path: Path) -> None:
    """The kernel writes a part of a line up to the limit of a file, and then none."""
    path = tmp_path / "train.log"
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with run_files.AppendedLines(path) as file:
        assert file.write("first\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (9, limits[1]))
        try:
            assert [file.write("second\n"), file.write("third\n")] == [False, False]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        assert file.lost == 2
        assert file.write("fourth\n") and file.write("fifth\n")
        assert file.lost == 0
    assert path.read_text() == "first\nsec\nfourth\nfifth\n"


def test_another_error_names_the_file(tmp_path: Path) -> None:
    file = run_files.AppendedLines(tmp_path / "train.log")
    os.dup2(os.open("/proc/self/stat", os.O_RDONLY), file._descriptor)
    with file, pytest.raises(IoFailure, match=r"train\.log: Bad file descriptor"):
        file.write("line\n")
