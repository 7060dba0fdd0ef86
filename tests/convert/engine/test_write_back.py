"""The write-back of what was written is started in order, by a thread that neither holds up the writers nor fails."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lt_convert.engine.write_back import WriteBack
from lt_shared.files.local_files import PartialDirectory


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[PartialDirectory]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    yield PartialDirectory(tmp_path, descriptor)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(descriptor)


def test_ranges_in_order_and_none_after_the_stop(
    directory: PartialDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(bytes(8))
    calls: list[tuple[str, int, int, int]] = []
    reached, may_go_on = threading.Event(), threading.Event()

    def slow_disk(descriptor: int, offset: int, length: int, advice: int) -> None:
        calls.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, offset, length, advice))
        if len(calls) == 2:
            reached.set()
            may_go_on.wait(60)

    monkeypatch.setattr(os, "posix_fadvise", slow_disk)
    write_back = WriteBack(directory)
    write_back.start()
    for extent in (("one", 0, 4), ("missing", 0, 4), ("two", 4, 4), ("one", 4, 4)):
        write_back.add(*extent)
    assert reached.wait(60), "a file that is missing is passed over"
    # The writers go on while the disk is slow; at the end only the running call is waited for.
    stopping = threading.Thread(target=write_back.stop)
    stopping.start()
    assert write_back._stop.wait(60)
    may_go_on.set()
    stopping.join()
    assert calls == [("one", 0, 4, os.POSIX_FADV_DONTNEED), ("two", 4, 4, os.POSIX_FADV_DONTNEED)]
