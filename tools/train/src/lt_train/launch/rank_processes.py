"""The ranks of this node as child processes: started together, ended together.

When one rank fails, the others wait for it in a collective; so they are killed and lt-train exits with the first failure's code.
When lt-train itself is killed, even with SIGKILL, the kernel ends the ranks (PR_SET_PDEATHSIG). The ranks are sessions of their
own: a signal to the process group of lt-train (Ctrl-C, Slurm) reaches them once, through lt-train. SIGTERM and SIGUSR1 are passed
on, and the ranks save and end; a second one kills them.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from lt_shared.console import ExitCode, Terminated, ToolError
from lt_train.config.run_config import RunConfig
from lt_train.runtime import rank_environment, signals
from lt_train.runtime.ports import free_port
from lt_train.runtime.process_lifetime import PARENT_VARIABLE
from lt_train.runtime.rank_environment import Node

POLL_SECONDS = 0.1


class RankKilled(ToolError):
    """A rank was ended by a signal, so it could not report itself."""

    def __init__(self, rank: int, signal_number: int):
        name = signal.Signals(signal_number).name
        hint = "often the kernel, out of memory: see dmesg" if signal_number == signal.SIGKILL else None
        super().__init__(f"rank {rank} on {socket.gethostname()} was ended by {name}; the other ranks were stopped", hint)
        self.exit_code = 128 + signal_number  # type: ignore[assignment]


def run(config: RunConfig) -> int:
    """Start all ranks of the run on this node and wait for them; returns the exit code, that of the first rank that fails.

    Raises RankKilled for a rank that a signal ended; other failures are reported by the ranks.
    """
    node = rank_environment.find_node() or Node(0, 1, None, rank_environment.LOOPBACK, free_port(), "lt-train")
    local_world_size = config.parallelism.world_size // node.nodes
    with tempfile.TemporaryDirectory(prefix="lt-train-") as directory:
        config_file = Path(directory) / "run_config.json"
        config_file.write_text(config.to_json())
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            # Until a rank listens to signals, those that are passed on to it wait.
            with signals.held_back():
                for local_rank in range(local_world_size):
                    variables = node.rank_environment(local_rank, local_world_size).variables()
                    environment = {**os.environ, **variables, PARENT_VARIABLE: str(os.getpid())}
                    command = [sys.executable, "-P", "-m", "lt_train.launch.worker", str(config_file)]
                    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
                    ranks.append(process)
                _pass_on_signals(ranks)
            return _wait(ranks, first=node.node_rank * local_world_size)
        finally:
            _stop(ranks)


def _pass_on_signals(ranks: list[subprocess.Popen[bytes]]) -> None:
    """The first signal goes to the ranks, which save and end; at the second, `Terminated` ends all."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        for each in signals.SIGNALS:
            signal.signal(each, _end)
        for process in ranks:
            process.send_signal(number)

    for number in signals.SIGNALS:
        signal.signal(number, pass_on)


def _end(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


def _wait(ranks: list[subprocess.Popen[bytes]], first: int) -> int:
    """0, or TRY_AGAIN when the ranks have saved and ended early, or the code of the first that failed.

    `first` is the number of the first of `ranks` among those of all nodes.
    """
    running = set(range(len(ranks)))
    worst = ExitCode.OK
    while running:
        for rank in sorted(running):
            code = ranks[rank].poll()
            if code is None:
                continue
            if code < 0:
                raise RankKilled(first + rank, -code)
            if code not in (ExitCode.OK, ExitCode.TRY_AGAIN):
                return code
            worst = max(worst, ExitCode(code))
            running.discard(rank)
        time.sleep(POLL_SECONDS)
    return worst


def _stop(ranks: list[subprocess.Popen[bytes]]) -> None:
    for process in ranks:
        if process.poll() is None:
            process.kill()
            process.wait()
