"""What several processes want at once is made once and seen whole."""

import errno
import fcntl
import multiprocessing
import os
import signal
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from lt_shared.console import CannotCreate
from lt_train.data.index_cache import make_once

FILES = 20
# Processes that share nothing with this one, as on other nodes.
PROCESSES = multiprocessing.get_context("fork")


def fill(directory: Path) -> None:
    for number in range(FILES):
        (directory / str(number)).write_text("whole")
        time.sleep(0.005)
    with (directory.parent / "made").open("a") as log:
        log.write("x")


def is_whole(directory: Path) -> bool:
    return {path.name for path in directory.iterdir()} == {str(number) for number in range(FILES)}


def make(cache: Path, locks: bool) -> None:
    def refused(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    if not locks:
        fcntl.flock = refused
    os._exit(0 if is_whole(make_once(cache, "index", fill)) else 1)


@pytest.mark.parametrize("locks", [True, False])
def test_many_at_once(tmp_path: Path, locks: bool) -> None:
    cache = tmp_path / "new" / "cache"
    makers = [PROCESSES.Process(target=make, args=(cache, locks)) for _ in range(6)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert [maker.exitcode for maker in makers] == [0] * 6
    assert is_whole(cache / "index")
    assert not list(cache.glob("*partial*"))
    if locks:
        assert (cache / "made").read_text() == "x"


def stuck(cache: Path, begun: Event) -> None:
    def fill_and_wait(directory: Path) -> None:
        (directory / "0").write_text("whole")
        begun.set()
        time.sleep(60)

    make_once(cache, "index", fill_and_wait)


def test_a_killed_maker_leaves_nothing_visible_and_is_cleared_away(tmp_path: Path) -> None:
    begun = PROCESSES.Event()
    maker = PROCESSES.Process(target=stuck, args=(tmp_path, begun))
    maker.start()
    assert begun.wait(30)
    assert maker.pid
    os.kill(maker.pid, signal.SIGKILL)
    maker.join()
    assert not (tmp_path / "index").exists()
    assert list(tmp_path.glob("*partial*"))
    assert is_whole(make_once(tmp_path, "index", fill))
    assert not list(tmp_path.glob("*partial*"))


def test_a_failed_maker_leaves_nothing(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "0").write_text("half")
        raise KeyError("no")

    with pytest.raises(KeyError):
        make_once(tmp_path, "index", fail)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]


def test_where_no_directory_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotCreate, match="file"):
        make_once(tmp_path / "file", "index", fill)


def test_the_names_in_a_directory_are_durable_before_it_gets_its_own(
    tmp_path: Path, durable_calls: list[tuple[str, str, int]]
) -> None:
    """Otherwise a power failure could leave an empty directory under the name that stands for its content."""

    def write(directory: Path) -> None:
        (directory / "0").write_text("whole")

    made = make_once(tmp_path, "index", write)
    (first, partial, _), *rest = durable_calls
    assert first == "fsync"
    assert Path(partial).parent == tmp_path and Path(partial).name.startswith(".index.partial-")
    assert [(call, path) for call, path, _ in rest] == [("rename", str(made)), ("fsync", str(tmp_path))]
