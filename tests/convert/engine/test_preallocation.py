"""Blocks are allocated before a tensor is written, and a file system that refuses makes no difference."""

import ctypes
import errno
import os
from pathlib import Path

import pytest

from lt_convert.engine import preallocation
from lt_convert.engine.preallocation import MIN_BYTES, preallocate


def test_the_range_is_allocated_and_the_content_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    size_bytes = 4 * MIN_BYTES
    with path.open("wb") as file:
        file.truncate(size_bytes)
        file.seek(MIN_BYTES)
        file.write(b"written before")
        file.flush()
        before = os.fstat(file.fileno()).st_blocks * 512
        preallocate(file.fileno(), MIN_BYTES, 2 * MIN_BYTES)
        after = os.fstat(file.fileno()).st_blocks * 512
    if after == before:
        pytest.skip("this file system does not preallocate")
    assert 2 * MIN_BYTES <= after < 3 * MIN_BYTES
    assert path.stat().st_size == size_bytes
    assert path.read_bytes() == bytes(MIN_BYTES) + b"written before".ljust(size_bytes - MIN_BYTES, b"\0")


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.ENOSPC])
def test_a_refusal_is_no_error_and_short_ranges_are_left_to_the_writes(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, ...]] = []

    def refuse(*arguments: int) -> int:
        calls.append(arguments)
        ctypes.set_errno(error)
        return -1

    monkeypatch.setattr(preallocation, "_fallocate", refuse)
    with (tmp_path / "file").open("wb") as file:
        preallocate(file.fileno(), 0, MIN_BYTES - 1)
        preallocate(file.fileno(), 8, MIN_BYTES)
        assert calls == [(file.fileno(), 0, 8, MIN_BYTES)]
