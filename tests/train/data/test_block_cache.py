"""Blocks on disk: whole or not there, within the limit, fetched once by many, and read on when they are deleted."""

import contextlib
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lt_shared.console import TryAgain
from lt_train.data import block_cache
from lt_train.data.block_cache import BlockCache

SIZE = 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "cache/dataset-1/blocks"
    made.mkdir(parents=True)
    return made


def of(folder: Path, blocks: int) -> BlockCache:
    return BlockCache(folder.parents[1], blocks * SIZE)


def content(number: int) -> bytes:
    return bytes([number % 251]) * SIZE


def read(cache: BlockCache, folder: Path, number: int, fetch: Callable[[], bytes] | None = None) -> bytes | None:
    """The bytes of a block; None when the cache has no room for it."""
    path = folder / str(number)
    descriptor = cache.open_block(path, SIZE)
    if descriptor is None:
        descriptor = cache.fetch_block(path, SIZE, fetch or (lambda: content(number)))
    if descriptor is None:
        return None
    with open(descriptor, "rb") as file:
        return file.read()


def there(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def total(folder: Path) -> int:
    """Bytes of all files at one moment; one may get its final name meanwhile, and be seen under both."""
    found = {}
    with locked_sum(folder):
        for name in there(folder):
            with contextlib.suppress(FileNotFoundError):
                status = (folder / name).stat()
                found[status.st_ino] = status.st_size
    return sum(found.values())


@contextlib.contextmanager
def locked_sum(folder: Path) -> Iterator[int]:
    """What the cache believes that its blocks have; no room is made meanwhile, and nothing deleted for it."""
    with open(folder.parents[1] / f".blocks-{os.geteuid()}", "ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield int(file.read() or b"0")


def test_the_least_recently_used_are_deleted_first(folder: Path) -> None:
    cache = of(folder, 40)
    for number in range(40):
        assert read(cache, folder, number) == content(number)
        os.utime(folder / str(number), (number + 1, number + 1))
    with open(folder / "1", "rb") as opened:
        assert read(cache, folder, 0) == content(0)
        assert read(cache, folder, 40) == content(40)
        assert opened.read() == content(1)
    # Room for one, and for a 16th of the limit, which is two and a half, beyond that.
    assert there(folder) == {str(number) for number in (0, *range(5, 41))}
    assert total(folder) <= 40 * SIZE


def test_the_limit_holds_while_many_fetch(folder: Path) -> None:
    cache, seen = of(folder, 10), []

    def fetch(number: int) -> bytes:
        threading.Event().wait(0.01)
        seen.append(total(folder))
        return content(number)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: read(cache, folder, number, lambda: fetch(number)), range(60)))
    assert all(each == content(number) for number, each in enumerate(found) if each is not None)
    assert max(*seen, total(folder)) <= 10 * SIZE
    assert len(seen) >= 50


def test_blocks_that_get_their_final_names_while_all_are_counted_count(folder: Path) -> None:
    cache, ended = of(folder, 1000), threading.Event()

    def count() -> None:
        while not ended.is_set():
            cache.count()

    with ThreadPoolExecutor(5) as pool:
        counting = pool.submit(count)
        for _ in pool.map(lambda number: read(cache, folder, number), range(400)):
            pass
        ended.set()
        counting.result()
    with locked_sum(folder) as believed_bytes:
        assert believed_bytes >= 400 * SIZE


def test_a_block_is_fetched_once(folder: Path) -> None:
    """By readers that share nothing but the directory, as those of two ranks."""
    fetched, begun = [], threading.Barrier(6)

    def fetch() -> bytes:
        fetched.append(1)
        threading.Event().wait(0.2)
        return content(7)

    def reader(_: int) -> bytes | None:
        begun.wait()
        return read(of(folder, 5), folder, 7, fetch)

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(reader, range(6))) == [content(7)] * 6
    assert len(fetched) == 1
    assert there(folder) == {"7"}


def test_what_fails_is_fetched_by_the_next(folder: Path) -> None:
    def fail() -> bytes:
        raise TryAgain("replaced")

    with pytest.raises(TryAgain):
        read(of(folder, 5), folder, 7, fail)
    assert not there(folder)
    assert read(of(folder, 5), folder, 7) == content(7)


KILLED = """
import os, signal, sys
from pathlib import Path
from lt_train.data import block_cache
from lt_train.data.block_cache import BlockCache

def kill(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

def half(descriptor, content, offset):
    os.pwrite(descriptor, content[: len(content) // 2], offset)
    kill()

directory, path, step = sys.argv[1:]
if step == "writing":
    block_cache.write_at = half
if step == "before the rename":
    os.rename = kill
BlockCache(Path(directory), 5000).fetch_block(Path(path), 1000, kill if step == "fetching" else lambda: bytes([7]) * 1000)
"""


def test_a_kill_leaves_no_block(folder: Path) -> None:
    for step in ("fetching", "writing", "before the rename"):
        command = [sys.executable, "-c", KILLED, str(folder.parents[1]), str(folder / "7"), step]
        assert subprocess.run(command).returncode == -signal.SIGKILL
        assert there(folder) == {".7.partial"}
        assert of(folder, 5).open_block(folder / "7", SIZE) is None
    # Those that were killed have left their sizes in the sum; what is there decides.
    assert [read(of(folder, 5), folder, number) for number in range(5)] == [content(number) for number in range(5)]
    assert read(of(folder, 5), folder, 7) == content(7)
    assert ".7.partial" not in there(folder)
    assert total(folder) <= 5 * SIZE


def test_the_start_of_a_run_deletes_what_is_too_much(folder: Path) -> None:
    for number in range(10):
        read(of(folder, 10), folder, number)
        os.utime(folder / str(number), (number + 1, number + 1))
    (folder / ".3.partial").write_bytes(bytes(SIZE))
    assert of(folder, 4).count() == 3 * SIZE
    assert there(folder) == {"7", "8", "9"}


def test_a_block_of_another_size_is_fetched_anew(folder: Path) -> None:
    read(of(folder, 5), folder, 7)
    os.truncate(folder / "7", 10)
    assert read(of(folder, 5), folder, 7) == content(7)


def test_others_blocks_stay(folder: Path, tmp_path: Path) -> None:
    """A link to where this user has files whose names are numbers."""
    (tmp_path / "mine/blocks").mkdir(parents=True)
    (tmp_path / "mine/blocks/1").write_bytes(bytes(SIZE))
    (folder.parents[1] / "dataset-2").symlink_to(tmp_path / "mine")
    read(of(folder, 1), folder, 7)
    assert read(of(folder, 1), folder, 8) == content(8)
    assert there(folder) == {"8"}
    assert (tmp_path / "mine/blocks/1").exists()


def test_no_room_for_a_block(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = BlockCache(folder.parents[1], SIZE - 1)
    assert [read(cache, folder, number) for number in range(3)] == [None] * 3
    assert not there(folder)
    assert capsys.readouterr().err.count("raise --object-storage-cache-gib") == 1


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 64 KiB where one can be mounted, otherwise a limit of 500 bytes a file."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", directory], capture_output=True).returncode == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if mounted:
        (directory / "other").write_bytes(bytes(60 << 10))
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    (directory / "dataset-1/blocks").mkdir(parents=True)
    yield directory / "dataset-1/blocks"
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    if mounted:
        subprocess.run(["umount", directory], check=True)


def test_a_full_disk_is_read_past(full_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(block_cache, "OUT_OF_USE_SECONDS", 3600)
    cache, fetched = BlockCache(full_disk.parents[1], 1 << 30), []

    def fetch() -> bytes:
        fetched.append(1)
        return bytes(SIZE)

    found = [read(cache, full_disk, number, fetch) for number in range(20)]
    assert found[-1] is None
    # After the disk was full, nothing is fetched that cannot be kept.
    assert len(fetched) < 20
    assert not [name for name in there(full_disk) if name.endswith(".partial")]
    assert all(each == bytes(SIZE) for each in found if each is not None)
    assert capsys.readouterr().err.count("make room there") == 1
