"""Tell the ranks that survive a dead rank to begin again in their processes, and keep the copies of their states.

A new process imports torch and megatron-core, makes a context on its GPU and compiles kernels: on a CPU 5 of the 15 seconds that
a restart took. So the surviving ranks leave their process groups and meet again at another port, with a spare process that has
imported everything and replaces the dead rank. Every rank loads the newest copy or checkpoint, as after any restart. If a rank
hangs, a watchdog names it, and it is killed first.

Launcher and ranks exchange packets of JSON over a socket in the launcher's directory:

    rank to launcher    {"rank": 2}                 its number on the node, at its start; spare processes are -1, -2 ...
                        {"imported": true}          the rank has imported its packages
                        {"suspect": 1}              rank 1 hangs
                        {"ready": true}             the rank has left its process groups
                        {"keep": 40, "bytes": 99, "rank": 2}    with the descriptor of a copy of its state
                        {"fetch": 40, "rank": 2}    the rank wants the copy of this step
    launcher to rank    {"hold": true}              a rank has died: wait for the next message instead of ending
                        {"config": FILE, "variables": {"RANK": "2", ...}, "stored": 40}
                        {"safe": 40}                the copy of this step is on two nodes
                        {"fetched": true}           with the descriptor of the copy, false without one
"""

import contextlib
import json
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lt_shared.console import IoFailure
from lt_train.launch.kept_copies import Copy, KeptCopies

VARIABLE = "LT_TRAIN_CONTROL"
# The step of the copies that a rank restores at its start; a rank that begins again is told in the message.
STORED_VARIABLE = "LT_TRAIN_STORED_STEP"
# A rank that has lost its connections waits this long for news of a dead rank. The launcher looks every tenth of a second.
HOLD_SECONDS = 5.0
# Time for the surviving ranks to leave their process groups. If a rank takes longer, all ranks are started anew.
READY_SECONDS = 20.0
# Time for a rank to import its packages, which a busy machine or filesystem makes long. Ranks that are started anew import, too.
IMPORT_SECONDS = 120.0
POLL_SECONDS = 0.1
LARGEST_BYTES = 4096


class Control:
    """The launcher's side. A context. `copies` keeps the ranks' copies."""

    def __init__(self, path: Path, copies: KeptCopies):
        self._path = path
        self._copies = copies
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.bind(os.fspath(path))
        self._server.listen()
        self._server.setblocking(False)
        self._connections: dict[int, socket.socket] = {}
        self._suspects: list[int] = []
        self._ready: set[int] = set()
        self._imported: set[int] = set()
        self._is_holding = False
        # The numbers on the node of ranks that have made a copy, by global rank.
        self._copying: dict[int, int] = {}
        self.send_copy: Callable[[int, int], None] = self.say_safe
        """Gets rank and step of each new copy. Calls `say_safe` when the copy is on two nodes."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment variable that tells ranks the launcher's socket."""
        return {VARIABLE: os.fspath(self._path)}

    def close(self) -> None:
        for connection in (self._server, *self._connections.values()):
            connection.close()

    def forget(self, rank: int) -> None:
        self._imported.discard(rank)
        if connection := self._connections.pop(rank, None):
            connection.close()

    def forget_all(self) -> None:
        self._is_holding = False
        for rank in list(self._connections):
            self.forget(rank)

    def say_safe(self, rank: int, step: int) -> None:
        """Tell a rank, by its global number, that its copy is safe. Any thread may call this."""
        self._send(self._copying[rank], {"safe": step})

    def hold(self, ranks: list[int]) -> None:
        """Tell `ranks` that a rank has died, so that they wait. Tell ranks that connect later, too."""
        self._accept()
        self._ready.clear()
        self._is_holding = True
        for rank in ranks:
            self._send(rank, {"hold": True})

    def poll(self, seconds: float = 0.0) -> None:
        """Read the ranks' messages. Wait up to `seconds` for one."""
        self._accept()
        connections = {connection: rank for rank, connection in self._connections.items()}
        for readable in select.select([self._server, *connections], [], [], seconds)[0]:
            if readable is self._server:
                self._accept()
            elif not self._read(connections[readable], readable):
                self.forget(connections[readable])

    def _read(self, rank: int, connection: socket.socket) -> bool:
        """Read a message of `rank`. Return False if its connection is closed."""
        message, descriptor = _receive(connection)
        if message is None:
            return False
        if "suspect" in message:
            self._suspects.append(int(message["suspect"]))
        elif "imported" in message:
            self._imported.add(rank)
        elif "ready" in message:
            self._ready.add(rank)
        elif "keep" in message and descriptor is not None:
            copy, global_rank = Copy(int(message["keep"]), descriptor, int(message["bytes"])), int(message["rank"])
            self._copies.keep(global_rank, copy)
            self._copying[global_rank] = rank
            self.send_copy(global_rank, copy.step)
        elif "fetch" in message:
            stored = self._copies.find(int(message["rank"]), int(message["fetch"]))
            self._send(rank, {"fetched": stored is not None}, stored.descriptor if stored else None)
        return True

    def suspects(self) -> list[int]:
        """Return the ranks that other ranks have named since the last call."""
        self.poll()
        suspect_ranks, self._suspects = self._suspects, []
        return suspect_ranks

    def are_ready(self, ranks: list[int], is_alive: Callable[[int], bool] = lambda rank: True) -> bool:
        """Wait for `ranks` to leave their process groups. False if a rank has ended or takes too long.

        A rank that still imports its packages is waited for longer, because a new process would have to import them, too.
        """
        began = time.monotonic()
        deadline, import_deadline = began + READY_SECONDS, began + IMPORT_SECONDS
        while waiting := set(ranks) - self._ready:
            now = time.monotonic()
            if not waiting <= self._imported and now < import_deadline:
                deadline = now + READY_SECONDS
            if now > deadline or not all(map(is_alive, waiting)):
                return False
            self.poll(min(POLL_SECONDS, deadline - now))
        return True

    def begin(self, attempts: Mapping[int, dict[str, Any]], spares: Mapping[int, int]) -> bool:
        """Let each rank begin its attempt. `spares` has the numbers of the spare processes that become ranks.

        False if a spare process does not come.
        """
        keys = {rank: -1 - number for rank, number in spares.items()}
        deadline = time.monotonic() + IMPORT_SECONDS
        while not set(keys.values()) <= self._connections.keys():
            if time.monotonic() > deadline:
                return False
            self.poll(POLL_SECONDS)
        for rank, key in keys.items():
            self._connections[rank] = self._connections.pop(key)
            if key in self._imported:
                self._imported = self._imported - {key} | {rank}
        self._is_holding = False
        # All ranks are told, also after one that could not be.
        return False not in [self._send(rank, attempt) for rank, attempt in attempts.items()]

    def _accept(self) -> None:
        """Accept the connections of ranks and spare processes that have started."""
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._server.accept()
                connection.setblocking(True)
                greeting, _ = _receive(connection)
                if greeting is not None:
                    rank = int(greeting["rank"])
                    self._connections[rank] = connection
                    if self._is_holding and rank >= 0:
                        self._send(rank, {"hold": True})

    def _send(self, rank: int, message: dict[str, Any], descriptor: int | None = None) -> bool:
        try:
            content = json.dumps(message).encode()
            socket.send_fds(self._connections[rank], [content], [] if descriptor is None else [descriptor])
        except (KeyError, OSError):
            return False
        return True


class Controlled:
    """The side of a rank, with its number on the node, or of a spare process, whose `rank` is negative.

    `interrupt` ends the rank's waits for other ranks. The object is the rank's `lt_train.checkpoint.memory.keeper.Keeper`.
    """

    def __init__(self, path: str, rank: int, interrupt: Callable[[], None] = lambda: None):
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(path)
        self._interrupt = interrupt
        self._is_told, self._is_free = threading.Event(), threading.Event()
        self._attempts: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._fetched: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._rank, self._safe_step = int(os.environ.get("RANK", rank)), 0
        self.stored_step = int(os.environ.get(STORED_VARIABLE, "0"))
        self._send({"rank": rank})
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def _listen(self) -> None:
        while True:
            message, descriptor = _receive(self._connection)
            if not message:
                break
            if "hold" in message:
                self._is_told.set()
                self._interrupt()
                self._is_free.set()
            elif "config" in message:
                self._attempts.put(message)
            elif "safe" in message:
                self._safe_step = int(message["safe"])
            elif "fetched" in message:
                self._fetched.put(descriptor)
        self._attempts.put(None)
        self._fetched.put(None)

    def is_held(self) -> bool:
        """Whether the launcher reports another rank's death in time, and this rank has been interrupted in time."""
        return self._is_told.wait(HOLD_SECONDS) and self._is_free.wait(READY_SECONDS)

    def say_ready(self) -> None:
        self._send({"ready": True})

    def say_imported(self) -> None:
        self._send({"imported": True})

    def suspect(self, rank: int) -> None:
        """Ask the launcher to end a rank that hangs."""
        self._send({"suspect": rank})

    def wait_for_attempt(self) -> dict[str, Any] | None:
        """Wait for the launcher's next attempt, and return it. None if the launcher has ended."""
        message = self._attempts.get()
        self._is_told.clear()
        self._is_free.clear()
        if message is not None:
            self._rank, self._safe_step, self.stored_step = int(message["variables"]["RANK"]), 0, int(message["stored"])
        return message

    def keep(self, step: int, descriptor: int, size_bytes: int) -> None:
        self._send({"keep": step, "bytes": size_bytes, "rank": self._rank}, descriptor)

    def is_safe(self, step: int) -> bool:
        return self._safe_step >= step

    def fetch(self) -> int:
        self._send({"fetch": self.stored_step, "rank": self._rank})
        descriptor = self._fetched.get()
        if descriptor is None:
            raise IoFailure(f"the copy of iteration {self.stored_step} in this node's memory is gone")
        return descriptor

    def _send(self, message: dict[str, Any], descriptor: int | None = None) -> None:
        socket.send_fds(self._connection, [json.dumps(message).encode()], [] if descriptor is None else [descriptor])


def _receive(connection: socket.socket) -> tuple[dict[str, Any] | None, int | None]:
    """Receive the next message and the descriptor that came with it; None if the other side has closed the connection."""
    try:
        content, descriptors, _, _ = socket.recv_fds(connection, LARGEST_BYTES, 1)
    except ConnectionError:
        return None, None
    message: dict[str, Any] | None = json.loads(content) if content else None
    return message, descriptors[0] if descriptors else None
