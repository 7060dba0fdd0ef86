"""Tell the ranks that survive a dead rank to begin again in their processes.

A rank that is started anew imports torch and megatron-core, makes a context on its GPU and compiles kernels: on a CPU 5 of the 15
seconds that a restart took. So the other ranks stay, leave their process groups, and meet again at another port, with a spare
process that has imported everything and replaces the dead one. Every rank loads the newest checkpoint, as after any restart.
A rank that hangs is killed first: the watchdog of another rank names it.

A socket in the launcher's directory, of packets of JSON:

    rank to launcher    {"rank": 2}                 at its start; a spare sends null
                        {"suspect": 1}              that rank hangs
                        {"ready": true}             it has left its process groups
    launcher to rank    {"hold": true}              a rank has died: wait for what follows instead of ending
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
# A rank that has lost its connections waits this long for the news of a dead rank: the launcher looks every tenth of a second.
HOLD_SECONDS = 5.0
# From the death of a rank until all others have left their process groups; then all ranks are started anew.
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
        """For the environment of ranks."""
        return {VARIABLE: os.fspath(self._path)}

    def close(self) -> None:
        for connection in (self._server, *self._connections.values()):
            connection.close()

    def forget(self, rank: int | None) -> None:
        if connection := self._connections.pop(rank, None):
            connection.close()

    def hold(self, ranks: list[int]) -> None:
        """Tell `ranks` to wait."""
        self._accept()
        for rank in ranks:
            self._send(rank, {"hold": True})

    def suspects(self) -> list[int]:
        """The ranks that others have named since the last call."""
        self._accept()
        suspect_ranks = []
        for connection in select.select(
            [candidate for rank, candidate in self._connections.items() if rank is not None], [], [], 0
        )[0]:
            message = _received(connection)
            if message is None:
                self._connections = {
                    rank: candidate for rank, candidate in self._connections.items() if candidate is not connection
                }
            elif "suspect" in message:
                suspect_ranks.append(int(message["suspect"]))
        return suspect_ranks

    def are_ready(self, ranks: list[int]) -> bool:
        """Wait for `ranks` to leave their process groups. False when one does not, or has ended."""
        deadline = time.monotonic() + READY_SECONDS
        waiting = set(ranks)
        while waiting:
            connections = {self._connections[rank]: rank for rank in waiting if rank in self._connections}
            left_seconds = deadline - time.monotonic()
            if len(connections) < len(waiting) or left_seconds <= 0:
                return False
            for connection in select.select(list(connections), [], [], left_seconds)[0]:
                message = _received(connection)
                if not message:
                    return False
                if "ready" in message:
                    waiting.discard(connections[connection])
        return True

    def begin(self, ranks: list[int], replaced: int, config_file: str, port: int) -> bool:
        """Let `ranks` begin again at `port`, and the spare as the rank that is `replaced`. False without a spare."""
        self._accept(wait_seconds=READY_SECONDS)
        if None not in self._connections:
            return False
        self._connections[replaced] = self._connections.pop(None)
        sent = [self._send(rank, {"config": config_file, "rank": rank, "port": port}) for rank in (*ranks, replaced)]
        return all(sent)

    def _accept(self, wait_seconds: float = 0.0) -> None:
        """Greet the ranks that have started; wait for the spare for some seconds."""
        deadline = time.monotonic() + wait_seconds
        while True:
            with contextlib.suppress(BlockingIOError):
                while True:
                    connection, _ = self._server.accept()
                    connection.setblocking(True)
                    greeting = _received(connection)
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
    """A rank's side, or the spare's, whose `rank` is None. `interrupt` frees the rank from what waits for the others."""

    def __init__(self, path: str, rank: int | None, interrupt: Callable[[], None] = lambda: None):
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(path)
        self._interrupt = interrupt
        self._is_told, self._is_free = threading.Event(), threading.Event()
        self._attempts: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._send({"rank": rank})
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def _listen(self) -> None:
        while message := _received(self._connection):
            if "hold" in message:
                self._is_told.set()
                self._interrupt()
                self._is_free.set()
            elif "config" in message:
                self._attempts.put(message)
        self._attempts.put(None)

    def is_held(self) -> bool:
        """Return whether the launcher reports another rank's death in time, and this rank has left its process groups in time."""
        return self._is_told.wait(HOLD_SECONDS) and self._is_free.wait(READY_SECONDS)

    def say_ready(self) -> None:
        self._send({"ready": True})

    def suspect(self, rank: int) -> None:
        """Have the launcher end a rank that hangs."""
        self._send({"suspect": rank})

    def attempt(self) -> dict[str, Any] | None:
        """What to begin; waits for it. None when the launcher has gone."""
        message = self._attempts.get()
        self._is_told.clear()
        self._is_free.clear()
        return message

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.send(json.dumps(message).encode())


def _received(connection: socket.socket) -> dict[str, Any] | None:
    """The next message; None when the other side has closed."""
    try:
        content = connection.recv(LARGEST_BYTES)
    except ConnectionError:
        return None
    message: dict[str, Any] | None = json.loads(content) if content else None
    return message
