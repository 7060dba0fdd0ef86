"""Start the ranks of this node as child processes, and end them together.

If a rank fails, the other ranks wait for it in a collective. So they are killed, and lt-train exits with the first failure's
code, unless --max-restarts lets them continue. If lt-train itself is killed, even with SIGKILL, the kernel ends the ranks
(PR_SET_PDEATHSIG). Every rank has a separate session, so that a signal to lt-train's process group (Ctrl-C, Slurm) reaches it
once, through lt-train. lt-train passes on SIGTERM, SIGUSR1 and, in a run that saves, Ctrl-C's SIGINT: the ranks save and end. A
second signal kills them.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Self

from lt_shared.console import ExitCode, Terminated, ToolError, note
from lt_train.launch.control import STORED_VARIABLE, Control
from lt_train.launch.copy_exchange import CopySender
from lt_train.launch.kept_copies import KeptCopies
from lt_train.process import rank_environment, signals, start_clock
from lt_train.process.ports import free_port
from lt_train.process.private_directory import private_directory
from lt_train.process.process_lifetime import PARENT_VARIABLE
from lt_train.process.rank_environment import Node, format_ranks
from lt_train.process.restart_policy import NEXT_PHASE

Process = subprocess.Popen[bytes]
POLL_SECONDS = 0.1


class RankKilled(ToolError):
    """A signal ended a rank, so the rank could not report its failure. If it `has_hung`, lt-train sent the signal."""

    def __init__(self, rank: int, signal_number: int, has_hung: bool = False):
        name = signal.Signals(signal_number).name
        hint = "often the kernel, out of memory: see dmesg" if signal_number == signal.SIGKILL and not has_hung else None
        how = "hung and was ended" if has_hung else f"was ended by {name}; the others cannot go on without it"
        super().__init__(f"rank {rank} on {socket.gethostname()} {how}", hint)
        self.has_hung = has_hung
        self.exit_code = ExitCode.NO_PROGRESS if has_hung else 128 + signal_number  # type: ignore[assignment]


class Ranks:
    """The ranks of this node. A context, which ends all ranks.

    With `has_spare`, the surviving ranks continue after a rank's death, and a spare process replaces it
    (`lt_train.launch.control`). `copies` holds the copies of the ranks' states.
    """

    def __init__(self, has_spare: bool):
        self._has_spare = has_spare
        self._stack = contextlib.ExitStack()
        self._processes: list[Process] = []
        # Spare processes by number. No number is used twice.
        self._spares: dict[int, Process] = {}
        self._spares_started = 0
        self._attempts = 0
        self._sending = contextlib.ExitStack()
        # The step of the copies that the present attempt restores, 0 for none.
        self._stored_step = 0
        self.copies = KeptCopies()
        self.signalled: int | None = None
        """The first signal that asked the run to save and end."""

    def __enter__(self) -> Self:
        self._directory = self._stack.enter_context(private_directory())
        self._control = Control(self._directory / "control", self.copies) if self._has_spare else None
        self._stack.callback(self.stop)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self._sending.close()
        if self._control:
            self._control.close()
        self.copies.close()

    @property
    def regroup_file(self) -> Path:
        """If this file exists, the ranks end after their next checkpoint with NEXT_PHASE."""
        return self._directory / "regroup"

    @property
    def is_interrupted(self) -> bool:
        return self.signalled == signal.SIGINT

    def run(
        self,
        run_config: str,
        world_size: int,
        saves: bool,
        node: Node | None = None,
        watch: Callable[[], None] = lambda: None,
        stored_step: int | None = None,
    ) -> int:
        """Start this node's ranks, or replace the dead rank, and wait for them.

        `run_config` is the run's configuration in JSON. With `saves`, the first signal lets the ranks save and end. `node` is by
        default the node that the environment describes. `watch` is called again and again; an error that it raises ends the wait,
        and the ranks go on until `stop`. `stored_step` is the step of the copies that the ranks restore, by default the newest
        step of which this node has all.

        Returns the exit code of the first rank that fails, or 0. Raises RankKilled if a signal ended a rank; the ranks report
        other failures themselves.
        """
        config_file = self._begin_attempt(run_config)
        node = node or rank_environment.find_node() or Node(0, 1, None, rank_environment.LOOPBACK, free_port(), "lt-train")
        if stored_step is None:
            stored_step = self.copies.newest_common(range(world_size))
            self.copies.retain(stored_step)
        self._stored_step = stored_step
        local_world_size = world_size // node.nodes
        if not self._continue(config_file, node, local_world_size):
            self.stop()
            # Signals stay blocked in a rank until the rank listens to them.
            with signals.hold_back_signals():
                for local_rank in range(local_world_size):
                    variables = node.rank_environment(local_rank, local_world_size).variables()
                    self._processes.append(self._start(config_file, variables))
        self._pass_on_signals(saves)
        self._start_spares(config_file, 1)
        return self._wait(node.node_rank * len(self._processes), watch)

    def _begin_attempt(self, run_config: str) -> str:
        self._attempts += 1
        self.regroup_file.unlink(missing_ok=True)
        config_file = self._directory / f"run_config-{self._attempts}.json"
        config_file.write_text(run_config)
        return str(config_file)

    def stand_by(self, run_config: str, count: int) -> None:
        """Start `count` spare processes for ranks that other nodes may lose."""
        self._start_spares(self._begin_attempt(run_config), count)
        self._pass_on_signals(saves=True)

    def hold(self) -> None:
        """Let the ranks wait for the next attempt instead of ending when they lose their connections."""
        if self._control:
            self._control.hold(self._live_ranks)

    def poll(self) -> None:
        """Read the messages of ranks that wait."""
        if self._control:
            self._control.poll()

    def send_copies_to(self, place: list[Any] | None, secret: bytes) -> None:
        """Send each later copy of this node's ranks to the launcher at `place`, a host and a port. None: to no launcher."""
        self._sending.close()
        if self._control is None or place is None:
            return
        host, port = place
        sender = self._sending.enter_context(CopySender(self.copies, secret, host, int(port), self._control.say_safe))
        self._control.send_copy = sender.send

    def _pass_on_signals(self, saves: bool) -> None:
        """Pass on the first signal to the ranks, which save and end. The second signal raises `Terminated`, which ends all."""
        numbers = signals.ending_signals(saves)

        def pass_on(number: int, frame: FrameType | None) -> None:
            self.signalled = number
            for signal_number in numbers:
                signal.signal(signal_number, _end)
            for process in self._processes:
                process.send_signal(number)

        for number in numbers:
            signal.signal(number, pass_on)

    def _start(self, config_file: str, variables: dict[str, str], *options: str) -> Process:
        began = start_clock.start_variable() if self._attempts == 1 else {}
        environment = {**os.environ, **variables, **began, PARENT_VARIABLE: str(os.getpid())}
        environment[signals.REGROUP_VARIABLE] = str(self.regroup_file)
        if self._control:
            environment |= self._control.variables | {STORED_VARIABLE: str(self._stored_step)}
        command = [sys.executable, "-P", "-m", "lt_train.launch.worker", config_file, *options]
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)

    def _start_spares(self, config_file: str, count: int) -> None:
        if self._control:
            with signals.hold_back_signals():
                while len(self._spares) < count:
                    number = self._spares_started
                    self._spares_started += 1
                    self._spares[number] = self._start(config_file, {}, "--spare", str(number))

    def _is_alive(self, rank: int) -> bool:
        return self._processes[rank].poll() is None

    @property
    def _live_ranks(self) -> list[int]:
        return [rank for rank in range(len(self._processes)) if self._is_alive(rank)]

    def _continue(self, config_file: str, node: Node, local_world_size: int) -> bool:
        """Let the live ranks begin again, and spare processes in place of the other ranks. Returns whether it worked."""
        live_ranks = self._live_ranks
        missing_ranks = [rank for rank in range(local_world_size) if rank not in live_ranks]
        if self._control is None or len(missing_ranks) > len(self._spares) or not (live_ranks or self._spares):
            return False
        for rank in missing_ranks:
            self._control.forget(rank)
        spares = dict(zip(missing_ranks, self._spares, strict=False))
        attempts = {
            rank: {
                "config": config_file,
                "stored": self._stored_step,
                "variables": node.rank_environment(rank, local_world_size).variables(),
            }
            for rank in range(local_world_size)
        }
        if not self._control.are_ready(live_ranks, self._is_alive) or not self._control.begin(attempts, spares):
            return False
        processes = dict(enumerate(self._processes)) | {rank: self._spares.pop(number) for rank, number in spares.items()}
        self._processes = [processes[rank] for rank in range(local_world_size)]
        numbers = [node.node_rank * local_world_size + rank for rank in missing_ranks]
        if len(numbers) == 1:
            note(f"the other ranks go on in their processes, and a spare one is rank {numbers[0]}")
        elif numbers:
            note(f"spare processes are the ranks {format_ranks(numbers)}, and the ranks of other nodes go on in theirs")
        return True

    def _wait(self, first: int, watch: Callable[[], None]) -> int:
        """Wait for the ranks. Return 0, TRY_AGAIN if they saved and ended early, NEXT_PHASE if they ended for the next phase, or
        the code of the first rank that failed.

        `first` is the global rank of the first rank on this node.
        """
        running = set(range(len(self._processes)))
        hung: set[int] = set()
        worst: int = ExitCode.OK
        while running:
            watch()
            hung |= self._end_suspects(running, first)
            for rank in sorted(running):
                code = self._processes[rank].poll()
                if code is None:
                    continue
                if code not in (ExitCode.OK, ExitCode.TRY_AGAIN, NEXT_PHASE):
                    if self._control:
                        self._control.hold(sorted(running - {rank}))
                    if code < 0:
                        raise RankKilled(first + rank, -code, rank in hung)
                    return code
                worst = max(worst, code)
                running.discard(rank)
            if self._control:
                self._control.poll(POLL_SECONDS)
            else:
                time.sleep(POLL_SECONDS)
        return worst

    def _end_suspects(self, running: set[int], first: int) -> set[int]:
        """Kill the ranks that other ranks report as hung, so that they can be replaced."""
        suspects = running & {rank - first for rank in (self._control.suspects() if self._control else ())}
        for rank in suspects:
            self._processes[rank].kill()
        return suspects

    def stop(self) -> None:
        """Kill the remaining ranks, all at once, because a process with much GPU memory takes seconds to end."""
        running = [process for process in (*self._processes, *self._spares.values()) if process.poll() is None]
        for process in running:
            process.kill()
        for process in running:
            process.wait()
        if self._control:
            self._control.forget_all()
        self._spares.clear()
        self._processes.clear()


def _end(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)
