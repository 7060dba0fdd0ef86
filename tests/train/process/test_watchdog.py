"""A run that does not move is ended, and the report names who holds it up."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from running import SMALL, copied_ranks_in, environment, quick_command, train

from lt_shared import pickles
from lt_shared.console import ExitCode
from lt_shared.contracts.manifest import Dataset
from lt_train.process import watchdog
from lt_train.process.watchdog import suspects


def state(rank: int, step: int = 5, at: str = "train_step.py:10 train", communicating: bool = True) -> dict[str, Any]:
    return {"rank": rank, "host": f"node{rank}", "step": step, "at": at, "communicating": communicating}


def test_the_suspect_is_the_one_that_is_elsewhere() -> None:
    assert suspects([state(0), state(1)], [2, 3]).startswith("suspect ranks 2, 3: no answer")
    assert suspects([state(0), state(1, step=4), state(2)], []) == "suspect rank 1 on node1 at train_step.py:10 train, step 4"
    late = state(1, at="loader.py:7 batches", communicating=False)
    assert suspects([state(0), late, state(2)], []) == "suspect rank 1 on node1 at loader.py:7 batches, step 5"
    on_devices = [state(rank, communicating=False) for rank in (0, 2, 3)]
    assert "suspect rank 1 on node1 at loader.py:7" in suspects([*on_devices, late], [])
    assert suspects([state(0), state(1)], []).startswith("all ranks wait at train_step.py:10 train")


def test_a_rank_waits_at_a_line_of_lt_train_and_not_of_torch() -> None:
    package = Path(watchdog.__file__).parents[1]
    names: dict[str, Any] = {"sys": sys}
    exec(compile("def wait():\n    return sys._getframe()\n", "torch/distributed.py", "exec"), names)
    exec(compile("def load():\n    return wait()\n", str(package / "data/loader.py"), "exec"), names)
    assert watchdog._innermost(names["load"]()) == "loader.py:2 load"


def test_a_stopped_rank_is_named_and_the_run_may_be_tried_again(dataset: Dataset, tmp_path: Path) -> None:
    options = ("--train-iters", "100000", "--ranks", "2", "--log-interval", "1", "--eval-interval", "100000")
    place = ("--save", str(tmp_path / "run"), "--distributed-timeout-minutes", "0.2")
    log = tmp_path / "log"
    with log.open("w") as file:
        words = quick_command(*SMALL, *options, *place, dataset.prefix)
        running = subprocess.Popen(words, stderr=file, env=environment(), cwd=tmp_path)
    try:
        while " iteration " not in log.read_text():
            assert running.poll() is None, log.read_text()
            time.sleep(0.05)
        os.kill(copied_ranks_in(tmp_path)[1], signal.SIGSTOP)
        assert running.wait(timeout=600) == ExitCode.TRY_AGAIN
    finally:
        running.kill()
    assert "suspect rank 1: no answer" in log.read_text()
    stacks = (tmp_path / "run" / "stacks" / "rank-00000.txt").read_text()
    assert "train_step.py" in stacks and "most recent call first" in stacks
    dump = pickles.load_plain((tmp_path / "run" / "stacks" / "nccl_trace_rank_0").read_bytes(), "the dump")
    assert "gloo:" in dump["entries"][-1]["profiling_name"]


STOPPED = """
import os, signal
from lt_train.checkpoint import training_state

load = training_state.load

def stop(*arguments):
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    return load(*arguments)

training_state.load = stop
"""


def test_a_rank_that_is_stopped_while_it_loads_is_named(dataset: Dataset, tmp_path: Path) -> None:
    """After six times the limit of a step, like one that saves."""
    options = (*SMALL, "--ranks", "2", "--save", str(tmp_path / "run"), "--save-interval", "1", dataset.prefix)
    assert train("--train-iters", "1", *options).code == 0
    (tmp_path / "sitecustomize.py").write_text(STOPPED)
    limit = ("--train-iters", "2", "--distributed-timeout-minutes", "0.05")
    stopped = train(*limit, *options, PYTHONPATH=str(tmp_path))
    assert stopped.code == ExitCode.TRY_AGAIN, stopped.err
    assert "no step for 0.3 minutes" in stopped.err and "suspect rank 1: no answer" in stopped.err
    assert train("--train-iters", "2", *options).code == 0


# Its argument is the port of a store.
RANK_1 = """
import sys, time
from lt_train.process.rank_environment import RankEnvironment
from lt_train.process.watchdog import Watchdog

with Watchdog(0.05, RankEnvironment(1, 1, 2, 2, "127.0.0.1", int(sys.argv[1]), "torchrun"), None):
    time.sleep(600)
"""


def test_rank_0_is_named_when_it_is_stopped_and_with_it_the_store() -> None:
    """The kernel takes connections for a stopped process, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as store:
        port = str(store.getsockname()[1])
        ended = subprocess.run(
            [sys.executable, "-c", RANK_1, port], capture_output=True, text=True, timeout=300, env=environment()
        )
    assert ended.returncode == ExitCode.TRY_AGAIN
    assert "suspect rank 0: no answer" in ended.stderr
