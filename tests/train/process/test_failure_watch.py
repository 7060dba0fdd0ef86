"""A rank that does not notice another's failure is ended, with the other's exit code and before any time limit."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from running import SMALL, copied_ranks_in, environment, quick_command

from lt_shared.console import BadData
from lt_shared.contracts.manifest import Dataset
from lt_train.process import failure_report, failure_watch
from lt_train.process.failure_watch import FailureWatch
from lt_train.process.rank_environment import RankEnvironment

# torch waits for a key, as it would for the answer; one of these waits ends while the interpreter does.
ENDING = """
import contextlib, datetime, itertools
import torch
from lt_train.process import failure_watch

class Store:
    numbers = itertools.count(1)

    def clone(self):
        return self

    def check(self, keys):
        torch.distributed.HashStore().wait(keys, datetime.timedelta(milliseconds=10 * next(self.numbers)))

failure_watch._get_default_store = Store
torch.distributed.get_world_size = lambda: 2
with contextlib.ExitStack() as stack:
    for _ in range(100):
        stack.enter_context(failure_watch.FailureWatch())
"""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.distributed.Store]:
    """That of two ranks, of which this process is both."""
    shared = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for module in (failure_report, failure_watch):
        monkeypatch.setattr(module, "_get_default_store", lambda: torch.distributed.PrefixStore("ranks", shared))
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(failure_report.signals, "die_by_signals", lambda: None)
    monkeypatch.setattr(failure_report.atexit, "register", lambda *arguments: None)
    monkeypatch.setattr(failure_watch, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(failure_watch, "GRACE_SECONDS", 0.2)
    yield shared


def fail() -> None:
    rank_env = RankEnvironment(1, 1, 2, 2, "127.0.0.1", 0, "torchrun")
    failure_report.replacement_error(BadData("the index is damaged"), rank_env, str)


def test_a_rank_that_waits_on_is_ended(store: torch.distributed.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), ended.set()))
    with FailureWatch():
        fail()
        assert ended.wait(60)
    assert codes == [65]


def test_a_rank_that_ends_by_itself_is_let_alone(store: torch.distributed.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_watch, "GRACE_SECONDS", 3600.0)
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("ended"))
    before = set(threading.enumerate())
    with FailureWatch():
        fail()
        (watching,) = set(threading.enumerate()) - before
    watching.join(60)
    assert not watching.is_alive()


def test_a_process_that_ends_while_the_store_is_asked_is_not_aborted() -> None:
    """The store of a busy machine answers late. A new interpreter: a copy would end without taking itself apart."""
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_under_context_parallelism_no_time_limit_expires(dataset: Dataset, tmp_path: Path) -> None:
    """The other rank waits for keys and values of the one that is killed."""
    options = ("--context-parallel-size", "2", "--ranks", "2", "--train-iters", "100000", "--log-interval", "1")
    log = tmp_path / "log"
    with log.open("w") as file:
        started = quick_command(*SMALL, *options, "--eval-interval", "100000", "--save", str(tmp_path / "run"), dataset.prefix)
        running = subprocess.Popen(started, stderr=file, env=environment(), cwd=tmp_path)
    try:
        while " iteration " not in log.read_text():
            assert running.poll() is None, log.read_text()
            time.sleep(0.05)
        os.kill(copied_ranks_in(tmp_path)[1], signal.SIGKILL)
        assert running.wait(timeout=600) == 128 + signal.SIGKILL
    finally:
        running.kill()
    assert "rank 1 on " in log.read_text() and "was ended by SIGKILL" in log.read_text()
    assert "no step for" not in log.read_text()
