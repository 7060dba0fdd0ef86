"""Files under names that everybody knows are this run's own, or they are neither read nor written."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lt_shared.console import CannotCreate
from lt_train.runtime import run_files


def overwrite(path: Path) -> None:
    with os.fdopen(run_files.descriptor(path, os.O_WRONLY), "w") as file:
        file.write("ours")


def append(path: Path) -> None:
    with run_files.appended(path) as file:
        file.write("ours\n")


USES: dict[str, Callable[[Path], object]] = {"overwrite": overwrite, "append": append, "read": run_files.content}


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
    assert run_files.content(path) == b"ours\nours\n"
    with pytest.raises(FileNotFoundError):
        run_files.content(tmp_path / "none")
