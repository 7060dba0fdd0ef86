"""Byte ranges of files: exact, or an error that names the file."""

import os
from pathlib import Path

import pytest

from lt_convert.tensors import source_files
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData


def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "OPEN_FILES", 2)
    with Files() as opened:
        for number in (0, 1, 2, 0, 1, 2):
            path = tmp_path / str(number)
            path.write_bytes(bytes([number]))
            assert opened.read(str(path), 0, 1) == bytes([number])
            descriptors = [Path(link).resolve() for link in Path("/proc/self/fd").iterdir()]
            assert sum(link.parent == tmp_path for link in descriptors) <= 2


def test_ranges(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    with Files() as opened:
        assert opened.size_bytes(str(tmp_path / "f")) == 10
        assert opened.read(str(tmp_path / "f"), 3, 4) == b"3456"
        assert opened.read(str(tmp_path / "f"), 10, 0) == b""


def test_missing_and_truncated_files_are_bad_data(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"1234")
    with Files() as opened:
        for offset, length in ((2, 4), (-1, 2), (0, 1 << 62), (0, -1)):
            with pytest.raises(BadData, match="short: ends at 4 bytes"):
                opened.read(str(tmp_path / "short"), offset, length)
        with pytest.raises(BadData, match="gone: missing"):
            opened.read(str(tmp_path / "gone"), 0, 1)
        with pytest.raises(BadData, match="missing"):
            opened.read(str(tmp_path / "short" / "below"), 0, 1)


def test_what_is_no_regular_file_is_bad_data(tmp_path: Path) -> None:
    """A pipe most of all: opening it would wait for ever."""
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    with Files() as opened:
        for name, message in (
            ("directory", "directory: not a regular file"),
            ("pipe", "pipe: not a regular file"),
            ("loop", "loop: Too many levels of symbolic links"),
            ("a" * 300, "File name too long"),
            ("a\0b", r"a\\x00b': cannot be the name of a file"),
            ("\ud800", r"ud800': cannot be the name of a file"),
        ):
            with pytest.raises(BadData, match=message):
                opened.size_bytes(f"{tmp_path}/{name}")
