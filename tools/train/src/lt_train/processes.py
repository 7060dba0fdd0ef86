"""The ranks of this node as child processes: started together, ended together.

When one rank fails, the others wait for it in a collective; so they are ended at once and lt-train exits with the first failure's
code. When lt-train itself is killed, even with SIGKILL, the kernel ends the ranks (PR_SET_PDEATHSIG).
"""

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lt_shared.console import ToolError
from lt_train.place import Place
from lt_train.plan import Plan

PR_SET_PDEATHSIG = 1
PARENT_VARIABLE = "LT_TRAIN_PARENT"
POLL_SECONDS = 0.1
GRACE_SECONDS = 10.0
PORTS = (20000, 32000)


class RankFailed(ToolError):
    """A rank ended with an error, which it has reported itself."""

    def __init__(self, rank: int, code: int):
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        super().__init__(f"rank {rank} ended with {how}; the other ranks were stopped")
        self.exit_code = code if code >= 0 else 128 - code  # type: ignore[assignment]


def run(plan: Plan) -> None:
    """Start every rank of `plan` on this node and wait for them. Raises RankFailed for the first that fails."""
    world = plan.parallelism.world_size
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="lt-train-") as place_of_files:
        if not (plan.checkpointing.save or plan.data.cache_path):
            plan = plan.with_cache(os.path.join(place_of_files, "data-cache"))
        plan_file = Path(place_of_files) / "plan.json"
        plan_file.write_text(plan.to_json())
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(world):
                place = Place(rank, rank, world, world, "127.0.0.1", port, "lt-train")
                environment = {**os.environ, **place.environment(), PARENT_VARIABLE: str(os.getpid())}
                command = [sys.executable, "-m", "lt_train.rank", str(plan_file)]
                ranks.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL))
            _wait(ranks)
        finally:
            _stop(ranks)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> None:
    running = set(range(len(ranks)))
    while running:
        for rank in sorted(running):
            code = ranks[rank].poll()
            if code is None:
                continue
            if code:
                raise RankFailed(rank, code)
            running.discard(rank)
        time.sleep(POLL_SECONDS)


def _stop(ranks: list[subprocess.Popen[bytes]]) -> None:
    """SIGTERM, and SIGKILL for those that have not ended after a while."""
    for process in ranks:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        if process.poll() is None:
            process.kill()
            process.wait()


def die_with_launcher() -> None:
    """Ask the kernel to kill this rank when lt-train goes away; does nothing in a rank that another launcher started."""
    launcher = os.environ.get(PARENT_VARIABLE)
    if launcher is not None:
        die_with(int(launcher))


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when `parent` goes away, or end now if it has gone already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def free_port() -> int:
    """A port that nobody listens on. Rank 0 binds it seconds later, so it lies below those of outgoing connections."""
    while True:
        port = random.randrange(*PORTS)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
