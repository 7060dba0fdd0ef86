"""How far a log was read, and when another log has taken its place."""

import os
from pathlib import Path

import pytest

from lt_monitor.collect.offsets import LogOffset, LogOffsets


def offset_of(path: Path, read: int) -> LogOffset:
    log_offset = LogOffset.at_start(str(path), path.stat())
    log_offset.advance(path.read_bytes()[:read])
    return log_offset


@pytest.mark.parametrize("read", [0, 1, 300, 2000])
def test_a_log_that_was_there_before_can_be_replaced(read: int, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(bytes(range(65, 85)) * 200)
    saved = offset_of(log, read).saved()
    offsets = LogOffsets([saved])
    (tmp_path / "new").write_bytes(b"z" * 3000)
    os.replace(tmp_path / "new", log)
    with log.open("rb") as file:
        found = offsets.find(str(log), file)
    assert found.offset == 0
    assert offsets.replaced(str(log), found) == saved
    assert offsets.replaced(str(tmp_path / "other"), found) is None


@pytest.mark.parametrize("changed", [0, 1023, 2000 - 256, 1999])
def test_a_change_at_the_begin_or_just_before_the_offset_is_noticed(changed: int, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    content = bytearray(bytes(range(65, 85)) * 200)
    log.write_bytes(content)
    saved = offset_of(log, 2000).saved()
    with log.open("rb") as file:
        found = saved.resume(file, "other")
    assert found is not None and (found.path, found.offset) == ("other", 2000)
    content[changed] ^= 1
    log.write_bytes(content)
    with log.open("rb") as file:
        assert saved.resume(file, "other") is None


def test_a_log_is_unchanged_only_with_inode_size_and_time(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(b"x" * 100)
    saved, before = offset_of(log, 100).saved(), log.stat()
    assert saved.is_unchanged(before)
    os.utime(log, ns=(before.st_mtime_ns, before.st_mtime_ns + 1))
    assert not saved.is_unchanged(log.stat())
    log.write_bytes(b"x" * 101)
    os.utime(log, ns=(before.st_mtime_ns, before.st_mtime_ns))
    assert not saved.is_unchanged(log.stat())
    (tmp_path / "copy").write_bytes(b"x" * 100)
    os.utime(tmp_path / "copy", ns=(before.st_mtime_ns, before.st_mtime_ns))
    assert not saved.is_unchanged((tmp_path / "copy").stat())


def test_a_log_in_two_pieces_is_known_like_one_in_one(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(bytes(range(65, 85)) * 200)
    pieces = LogOffset.at_start(str(log), log.stat())
    for begin, end in ((0, 1000), (1000, 1100), (1100, 3000)):
        pieces.advance(log.read_bytes()[begin:end])
    assert pieces.saved() == offset_of(log, 3000).saved()
