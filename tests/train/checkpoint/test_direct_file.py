"""What is written in blocks, past the page cache or through it, is in the file, to the last byte, or an error says why not."""

import errno
import os
import resource
from pathlib import Path
from typing import Any

import fsspec.implementations.local
import numpy as np
import pytest

from lt_train.checkpoint.shards import direct_file
from lt_train.checkpoint.shards.direct_file import ALIGNMENT

BLOCK = 4 * ALIGNMENT
SIZES = [0, 1, ALIGNMENT, ALIGNMENT + 1, BLOCK - 1, BLOCK, BLOCK + ALIGNMENT, 3 * BLOCK + 17]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_file, "BLOCK_BYTES", BLOCK)


def content_of(size_bytes: int) -> bytes:
    return np.random.default_rng(size_bytes).bytes(size_bytes)


def put(path: str, content: bytes, pieces: int = 3) -> None:
    with direct_file.create(path) as file:
        for begin in range(0, len(content) + 1, len(content) // pieces + 1):
            file.write(memoryview(content)[begin : begin + len(content) // pieces + 1])


@pytest.mark.parametrize("size_bytes", SIZES)
def test_every_size(size_bytes: int, tmp_path: Path) -> None:
    content = content_of(size_bytes)
    (tmp_path / "file").write_bytes(b"what was there before" * 10_000)
    put(str(tmp_path / "file"), content)
    assert (tmp_path / "file").read_bytes().hex() == content.hex()


@pytest.mark.parametrize("refused", ["at opening", "at the first block"])
def test_a_filesystem_without_direct_writes(refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open, real_write, direct = os.open, os.write, set()

    def opened(path: Any, flags: int, *mode: Any, **options: Any) -> int:
        if flags & os.O_DIRECT and refused == "at opening":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_open(path, flags & ~os.O_DIRECT, *mode, **options)

    def written(descriptor: int, block: Any) -> int:
        if refused == "at the first block" and descriptor not in direct:
            direct.add(descriptor)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_write(descriptor, block)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "write", written)
    content = content_of(2 * BLOCK + 5)
    put(str(tmp_path / "file"), content)
    assert (tmp_path / "file").read_bytes().hex() == content.hex()


def test_writes_that_stop_in_the_middle_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a signal, or at a quota: not even a whole block of the disk."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, block: real(descriptor, block[: max(1, len(block) // 2 - 1)]))
    content = content_of(2 * BLOCK + 5)
    put(str(tmp_path / "file"), content)
    assert (tmp_path / "file").read_bytes().hex() == content.hex()


def test_it_is_synced_once_when_all_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    put(str(tmp_path / "file"), content_of(2 * BLOCK + 5))
    assert sizes == [2 * BLOCK + 5]


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """The limit of this process stands in for a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            put(str(tmp_path / "file"), content_of(3 * BLOCK))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [name for name in os.listdir("/proc/self/fd") if str(tmp_path) in os.path.realpath(f"/proc/self/fd/{name}")]


def test_a_remote_file_appears_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec treats local:// as it treats s3://. A part is uploaded as soon as a block is full."""
    store, content = tmp_path / "store", content_of(2 * BLOCK + 5)
    store.mkdir()
    written = []
    upload = fsspec.implementations.local.LocalFileOpener.write
    monkeypatch.setattr(
        "fsspec.implementations.local.LocalFileOpener.write",
        lambda file, block: (written.append((len(block), (store / "file").exists())), upload(file, block))[1],
    )
    put(f"local://{store}/file", content)
    assert written == [(BLOCK, False), (BLOCK, False), (5, False)]
    assert (store / "file").read_bytes().hex() == content.hex()
    with pytest.raises(RuntimeError, match="while it is made"), direct_file.create(f"local://{store}/other") as file:
        file.write(memoryview(content))
        raise RuntimeError("while it is made")
    assert os.listdir(store) == ["file"]
