"""Tell the ranks that survive a dead rank to begin again in their processes.

A new process imports torch and megatron-core, makes a context on its GPU and compiles kernels: on a CPU 5 of the 15 seconds that
a restart took. So the surviving ranks leave their process groups and meet again at another port, with a spare process that has
imported everything and replaces the dead rank. Every rank loads the newest checkpoint, as after any restart. If a rank hangs, a
watchdog names it, and it is killed first.

Launcher and ranks exchange packets of JSON over a socket in the launcher's directory:

    rank to launcher    {"rank": 2}                 at the rank's start; a spare sends null
                        {"suspect": 1}              rank 1 hangs
                        {"ready": true}             the rank has left its process groups
    launcher to rank    {"hold": true}              a rank has died: wait for the next message instead of ending
                        {"config": FILE, "rank": 2, "port": 29611}
"""

import contextlib
import json
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "LT_TRAIN_CONTROL"
# A rank that has lost its connections waits this long for news of a dead rank. The launcher looks every tenth of a second.
HOLD_SECONDS = 5.0
# Time for the surviving ranks to leave their process groups. If a rank takes longer, all ranks are started anew.
READY_SECONDS = 20.0
LARGEST_BYTES = 4096


class Control:
    """The launcher's side. A context."""

    def __init__(self, path: Path):
        self._path = path
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.bind(os.fspath(path))
        self._server.listen()
        self._server.setblocking(False)
        self._connections: dict[int | None, socket.socket] = {}

    @property
    def variables(self) -> dict[str, str]:
        """The environment variable that tells ranks the launcher's socket."""
        return {VARIABLE: os.fspath(self._path)}

    def close(self) -> None:
        for connection in (self._server, *self._connections.values()):
            connection.close()

    def forget(self, rank: int | None) -> None:
        if connection := self._connections.pop(rank, None):
            connection.close()

    def hold(self, ranks: list[int]) -> None:
        """Tell `ranks` that a rank has died, so that they wait."""
        self._accept()
        for rank in ranks:
            self._send(rank, {"hold": True})

    def suspects(self) -> list[int]:
        """Return the ranks that other ranks have named since the last call."""
        self._accept()
        suspect_ranks = []
        for connection in select.select(
            [candidate for rank, candidate in self._connections.items() if rank is not None], [], [], 0
        )[0]:
            message = _receive(connection)
            if message is None:
                self._connections = {
                    rank: candidate for rank, candidate in self._connections.items() if candidate is not connection
                }
            elif "suspect" in message:
                suspect_ranks.append(int(message["suspect"]))
        return suspect_ranks

    def are_ready(self, ranks: list[int]) -> bool:
        """Wait for `ranks` to leave their process groups. False if a rank has ended or takes too long."""
        deadline = time.monotonic() + READY_SECONDS
        waiting = set(ranks)
        while waiting:
            connections = {self._connections[rank]: rank for rank in waiting if rank in self._connections}
            left_seconds = deadline - time.monotonic()
            if len(connections) < len(waiting) or left_seconds <= 0:
                return False
            for connection in select.select(list(connections), [], [], left_seconds)[0]:
                message = _receive(connection)
                if not message:
                    return False
                if "ready" in message:
                    waiting.discard(connections[connection])
        return True

    def begin(self, ranks: list[int], replaced: int, config_file: str, port: int) -> bool:
        """Let `ranks` and the spare, which becomes rank `replaced`, begin again at `port`. False without a spare."""
        self._accept(wait_seconds=READY_SECONDS)
        if None not in self._connections:
            return False
        self._connections[replaced] = self._connections.pop(None)
        sent = [self._send(rank, {"config": config_file, "rank": rank, "port": port}) for rank in (*ranks, replaced)]
        return all(sent)

    def _accept(self, wait_seconds: float = 0.0) -> None:
        """Accept the connections of ranks that have started. Wait up to `wait_seconds` for the spare."""
        deadline = time.monotonic() + wait_seconds
        while True:
            with contextlib.suppress(BlockingIOError):
                while True:
                    connection, _ = self._server.accept()
                    connection.setblocking(True)
                    greeting = _receive(connection)
                    if greeting is not None:
                        self._connections[greeting["rank"]] = connection
            left_seconds = deadline - time.monotonic()
            if None in self._connections or left_seconds <= 0 or not wait_seconds:
                return
            select.select([self._server], [], [], left_seconds)

    def _send(self, rank: int, message: dict[str, Any]) -> bool:
        try:
            self._connections[rank].send(json.dumps(message).encode())
        except (KeyError, OSError):
            return False
        return True


class Controlled:
    """The side of a rank, or of the spare, whose `rank` is None. `interrupt` ends the rank's waits for other ranks."""

    def __init__(self, path: str, rank: int | None, interrupt: Callable[[], None] = lambda: None):
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(path)
        self._interrupt = interrupt
        self._is_told, self._is_free = threading.Event(), threading.Event()
        self._attempts: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._send({"rank": rank})
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def _listen(self) -> None:
        while message := _receive(self._connection):
            if "hold" in message:
                self._is_told.set()
                self._interrupt()
                self._is_free.set()
            elif "config" in message:
                self._attempts.put(message)
        self._attempts.put(None)

    def is_held(self) -> bool:
        """Whether the launcher reports another rank's death in time, and this rank has been interrupted in time."""
        return self._is_told.wait(HOLD_SECONDS) and self._is_free.wait(READY_SECONDS)

    def say_ready(self) -> None:
        self._send({"ready": True})

    def suspect(self, rank: int) -> None:
        """Ask the launcher to end a rank that hangs."""
        self._send({"suspect": rank})

    def wait_for_attempt(self) -> dict[str, Any] | None:
        """Wait for the launcher's next attempt, and return it. None if the launcher has ended."""
        message = self._attempts.get()
        self._is_told.clear()
        self._is_free.clear()
        return message

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.send(json.dumps(message).encode())


def _receive(connection: socket.socket) -> dict[str, Any] | None:
    """Receive the next message; None if the other side has closed the connection."""
    try:
        content = connection.recv(LARGEST_BYTES)
    except ConnectionError:
        return None
    message: dict[str, Any] | None = json.loads(content) if content else None
    return message
