"""What a killed lt-train has left in the temporary directory is deleted by the next one, and nothing else."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lt_train.process.private_directory import PREFIX, private_directory

HOLDER = """
import sys
from lt_train.process.private_directory import private_directory
with private_directory() as path:
    (path / "file").touch()
    print(path, flush=True)
    sys.stdin.read()
"""


def old(path: Path) -> Path:
    os.utime(path, (0, 0))
    return path


def test_deletes_what_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stdin and process.stdout
    held = old(Path(process.stdout.readline().strip()))
    others = [tmp_path / "lt-train-1000", tmp_path / f"{PREFIX}young"]
    for path in others:
        path.mkdir()
    old(others[0])
    (tmp_path / f"{PREFIX}link").symlink_to(others[0])
    with private_directory() as own:
        assert sorted(tmp_path.iterdir()) == sorted([held, own, *others, tmp_path / f"{PREFIX}link"])
    process.kill()
    process.communicate()
    assert held.is_dir()
    with private_directory():
        assert not held.exists()
    assert all(path.is_dir() for path in others) and not own.exists()
