"""Connect the launchers of a run's nodes, so that they start and end the attempts of an elastic run together.

The launcher on the first node leads: it listens on the rendezvous port, and the other launchers connect to it. A closed
connection means a lost node. The kernel closes the connection of a killed launcher at once, and probes a silent host
(TCP keepalive), because a host without power closes nothing. Messages are lines of JSON:

    member to leader    {"node": 1, "host": "gpu2", "settings": DIGEST}     at the start
                        {"ended": 0, "attempt": 3}                          exit code of the node's ranks, None if stopped
                        {"leaves": true}                                    a signal has ended this node's part
    leader to member    {"begin": 3, "nodes": [0, 2], "port": 29611, "step": 40}
                        {"stop": 3}                                         end the ranks of the attempt
                        {"finish": 0}                                       the run has ended with this exit code
                        {"refused": REASON}

As with the ranks' store, there is no authentication. No message makes a launcher read a file or run a program.
"""

import contextlib
import json
import select
import socket
import time
from collections.abc import Sequence
from typing import Any, Self

from lt_shared.console import BadConfig, Unavailable, note
from lt_train.process import ports

LONGEST_LINE_BYTES = 65536
# A host that answers no probe for 5 + 3 x 5 seconds is lost.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
# A process that connects says its number within this time.
GREETING_SECONDS = 30.0
RETRY_SECONDS = 0.2


class Connection:
    """Exchange lines of JSON with one other launcher. `is_open` becomes false if the other side is lost."""

    def __init__(self, connected: socket.socket):
        self._socket = connected
        self._received = b""
        self.is_open = True
        self.host: str = connected.getpeername()[0]
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connected.settimeout(0)

    def send(self, message: dict[str, Any]) -> None:
        # The kernel's buffer holds many such lines. A side that lets it fill up is lost.
        line = json.dumps(message).encode() + b"\n"
        try:
            if self.is_open and self._socket.send(line) < len(line):
                self.close()
        except OSError:
            self.close()

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have come since the last call, without waiting."""
        while self.is_open:
            try:
                content = self._socket.recv(LONGEST_LINE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                content = b""
            self._received += content
            if not content:
                self.close()
        *lines, self._received = self._received.split(b"\n")
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError:
            messages = [None]
        if len(self._received) > LONGEST_LINE_BYTES or not all(isinstance(message, dict) for message in messages):
            self.close()
            return []
        return messages

    def wait(self, seconds: float) -> None:
        """Wait until something has come, at most `seconds`."""
        if self.is_open:
            select.select([self._socket], [], [], seconds)

    def close(self) -> None:
        self.is_open = False
        self._socket.close()


class Leader:
    """The side of the first node, with the number 0. A context. `settings` is a digest that all nodes must have alike.

    Raises Unavailable if the port cannot be opened.
    """

    def __init__(self, address: str, port: int, nodes: int, settings: str):
        try:
            self._listener = ports.listen(address, port)
        except OSError as error:
            raise Unavailable(f"{address}:{port}: {error.strerror}", "see whether another run has this MASTER_PORT") from None
        self._listener.settimeout(0)
        self._nodes = nodes
        self._settings = settings
        self._newcomers: list[tuple[Connection, float]] = []
        self._members: dict[int, Connection] = {}
        self._hosts: dict[int, str] = {}
        self._attempt = 0
        self._running: set[int] = set()
        self.endings: dict[int, int] = {}
        """Exit codes of the nodes of the present attempt whose ranks have ended."""
        self.lost: dict[int, str] = {}
        """Nodes of the present attempt that are lost or leave, with their hosts."""

    number = 0
    """The number of the node that leads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for connection in (*self._members.values(), *(newcomer for newcomer, _ in self._newcomers)):
            connection.close()
        self._listener.close()

    @property
    def present(self) -> list[int]:
        """The numbers of the nodes that are connected, and of this node."""
        return [0, *sorted(self._members)]

    def poll(self) -> None:
        """Accept nodes that have come, and read the members' reports."""
        with contextlib.suppress(BlockingIOError):
            while True:
                connected, _ = self._listener.accept()
                self._newcomers.append((Connection(connected), time.monotonic() + GREETING_SECONDS))
        newcomers, self._newcomers = self._newcomers, []
        for connection, deadline in newcomers:
            messages = connection.receive()
            if messages:
                self._admit(connection, messages[0])
            elif connection.is_open and time.monotonic() < deadline:
                self._newcomers.append((connection, deadline))
            else:
                connection.close()
        for node, connection in list(self._members.items()):
            for message in connection.receive():
                self._read(node, message)
            if not connection.is_open:
                self._lose(node)

    def _admit(self, connection: Connection, greeting: dict[str, Any]) -> None:
        node, host = greeting.get("node"), str(greeting.get("host"))[:64]
        if not (isinstance(node, int) and 0 <= node < self._nodes and node != self.number):
            reason = f"the run has nodes 1 to {self._nodes - 1} beside the first one, and {host} is number {node}"
        elif greeting.get("settings") != self._settings:
            reason = f"{host} has other settings than the first node"
        else:
            # A node that is back before its old connection is known to be lost.
            self._lose(node)
            self._members[node], self._hosts[node] = connection, host
            return
        note(f"refusing a node: {reason}")
        connection.send({"refused": reason})
        connection.close()

    def _read(self, node: int, message: dict[str, Any]) -> None:
        code, leaves = message.get("ended"), message.get("leaves")
        if leaves:
            self._lose(node)
        elif message.get("attempt") == self._attempt and node in self._running:
            self._running.discard(node)
            if isinstance(code, int):
                self.endings[node] = code

    def _lose(self, node: int) -> None:
        if connection := self._members.pop(node, None):
            connection.close()
            if node in self._running:
                self.lost[node] = self._hosts[node]
                self._running.discard(node)

    def begin(self, nodes: Sequence[int], port: int, step: int) -> None:
        """Tell `nodes` to start their ranks for the next attempt, which meet at `port` and begin after `step` steps."""
        self._attempt += 1
        self._running = set(nodes) - {0}
        self.endings, self.lost = {}, {}
        for node in self._running:
            self._members[node].send({"begin": self._attempt, "nodes": list(nodes), "port": port, "step": step})

    @property
    def is_complete(self) -> bool:
        """Whether the other nodes' ranks in the present attempt have ended."""
        return not self._running

    def stop(self) -> None:
        """Tell the other nodes to end their ranks."""
        for node in self._running:
            self._members[node].send({"stop": self._attempt})

    def give_up(self) -> None:
        """Count the nodes whose ranks have not ended as lost."""
        for node in list(self._running):
            self._lose(node)

    def finish(self, code: int) -> None:
        """Tell all nodes that the run has ended with `code`."""
        for connection in self._members.values():
            connection.send({"finish": code})


class Refused(BadConfig):
    """The first node does not admit this node."""


class Member:
    """The side of the node number `node`. A context. Raises Unavailable if nobody answers within `wait_seconds`."""

    def __init__(self, address: str, port: int, node: int, settings: str, wait_seconds: float):
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                self._connection = Connection(socket.create_connection((address, port), timeout=GREETING_SECONDS))
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    reason = f"no launcher answers at {address}:{port} for {wait_seconds:g} s: {error.strerror or error}"
                    raise Unavailable(reason, "see how the launcher on the first node ended") from None
            time.sleep(RETRY_SECONDS)
        self._connection.send({"node": node, "host": socket.gethostname(), "settings": settings})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def send(self, message: dict[str, Any]) -> None:
        self._connection.send(message)

    def receive(self) -> list[dict[str, Any]]:
        """Return the leader's new messages, without waiting. Raise Unavailable if the first node is lost."""
        messages = self._connection.receive()
        for message in messages:
            if "refused" in message:
                raise Refused(str(message["refused"]), "start all nodes of a run with one command")
        if not messages and not self._connection.is_open:
            raise Unavailable("the first node is lost, which leads the others", "start the job again: it goes on from SAVE")
        return messages

    def wait(self, seconds: float) -> None:
        self._connection.wait(seconds)
