"""Connect the launchers of a run's nodes, so that they start and end the attempts of an elastic run together.

One launcher leads, at the start the first node's; it listens on the rendezvous port, and the other launchers connect to it. A
closed connection means a lost node. The kernel closes the connection of a killed launcher at once, and probes a silent host
(TCP keepalive), because a host without power closes nothing. Each member listens, too: if the leader is lost, the member with the
lowest number leads. As with the ranks' store, there is no authentication. No message makes a launcher read a file or run a
program.
"""

import contextlib
import json
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from lt_shared.console import BadConfig, ExitCode, Terminated, Unavailable, note
from lt_train.process import ports

# Messages are lines of JSON. From a member to the leader:
#     {"node": 1, "host": "gpu2", "port": 41123, "settings": DIGEST}    the greeting
#     {"ended": 0, "attempt": 3, "leaves": false}    the exit code of the node's ranks, None if they were stopped
#     {"leaves": true}                               a signal has ended this node's part
# From the leader to a member:
#     {"welcome": 0}, {"refused": REASON}            the answer to the greeting
#     {"begin": 3, "nodes": [0, 2], "address": ["10.0.0.1", 29611], "step": 40, "members": {"2": [HOST, PORT]}}
#     {"stop": 3}                                    end the ranks of the attempt
#     {"finish": 0}                                  the run has ended with this exit code
LONGEST_LINE_BYTES = 65536
# A host that answers no probe for 5 + 3 x 5 seconds is lost.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
# A process that connects says its number within this time.
GREETING_SECONDS = 30.0
RETRY_SECONDS = 0.2

Endpoint = tuple[str, int]


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

    @property
    def local_address(self) -> str:
        """This machine's address, as the other side sees it."""
        return str(self._socket.getsockname()[0])

    def wait(self, seconds: float) -> bool:
        """Wait until something has come, at most `seconds`. Return whether it has."""
        return self.is_open and bool(select.select([self._socket], [], [], seconds)[0])

    def close(self) -> None:
        self.is_open = False
        self._socket.close()


def listen(address: str, port: int) -> socket.socket:
    """Listen for other launchers. Raises Unavailable if the port cannot be opened."""
    try:
        return ports.listen(address, port)
    except OSError as error:
        raise Unavailable(f"{address}:{port}: {error.strerror}", "see whether another run has this MASTER_PORT") from None


class Leader:
    """The side of the node `number`, which leads `nodes` nodes. A context, which closes `listener`.

    `settings` is a digest that all nodes must have alike. `endings` has the exit codes of the nodes whose ranks have ended in the
    present attempt. `lost` has the nodes of this attempt that are lost or leave, with their hosts.
    """

    def __init__(self, listener: socket.socket, number: int, nodes: int, settings: str):
        self._listener = listener
        self._listener.settimeout(0)
        self.number = number
        self._nodes = nodes
        self._settings = settings
        self._newcomers: list[tuple[Connection, float]] = []
        self._members: dict[int, Connection] = {}
        self._hosts: dict[int, str] = {}
        self._endpoints: dict[int, Endpoint] = {}
        self._attempt = 0
        self._running: set[int] = set()
        self.endings: dict[int, int] = {}
        self.lost: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for connection in (*self._members.values(), *(newcomer for newcomer, _ in self._newcomers)):
            connection.close()
        self._listener.close()

    @property
    def present(self) -> list[int]:
        """The number of this node, and the numbers of the nodes that are connected."""
        return [self.number, *sorted(self._members)]

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
        node, host, port = greeting.get("node"), str(greeting.get("host"))[:64], greeting.get("port")
        numbers = [number for number in range(self._nodes) if number != self.number]
        if not isinstance(node, int) or not isinstance(port, int) or node not in numbers:
            reason = f"the other nodes of the run have numbers up to {numbers[-1]}, and {host} is number {node}"
        elif greeting.get("settings") != self._settings:
            reason = f"{host} has other settings than node {self.number}"
        else:
            # A node that is back before its old connection is known to be lost.
            self._lose(node)
            self._members[node], self._hosts[node] = connection, host
            self._endpoints[node] = (connection.host, port)
            connection.send({"welcome": self.number})
            return
        if greeting:
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

    def begin(self, nodes: Sequence[int], address: Endpoint, step: int) -> None:
        """Tell `nodes` to start their ranks for the next attempt, which meet at `address` and begin after `step` steps."""
        self._attempt += 1
        self._running = set(nodes) - {self.number}
        self.endings, self.lost = {}, {}
        members = {str(node): self._endpoints[node] for node in sorted(self._running)}
        attempt = {"begin": self._attempt, "nodes": list(nodes), "address": address, "step": step, "members": members}
        for node in self._running:
            self._members[node].send(attempt)

    @property
    def is_complete(self) -> bool:
        """Whether the other nodes' ranks in the present attempt have ended."""
        return not self._running

    def describe_lost(self, of_nodes: str = "") -> str:
        """Return the sentence that names the lost nodes and their hosts."""
        hosts = ", ".join(f"{number} ({host})" for number, host in sorted(self.lost.items()))
        return f"node {hosts}{of_nodes} is lost" if len(self.lost) == 1 else f"nodes {hosts}{of_nodes} are lost"

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
    """The leader does not admit this node."""


class LeaderLost(Unavailable):
    """The node that leads the others is lost."""


class Member:
    """The side of the node number `node`. A context.

    `endpoints` returns the addresses where the leader may be. After the connection, `listener` is open at this node's
    `address`, for the case that this node has to lead. `signalled` returns the signal that has asked the run to end, if any.
    Raises Unavailable if no leader answers within `wait_seconds`, and Terminated after a signal.
    """

    def __init__(
        self,
        endpoints: Callable[[], Sequence[Endpoint]],
        node: int,
        settings: str,
        wait_seconds: float,
        signalled: Callable[[], int | None] = lambda: None,
    ):
        self._received: list[dict[str, Any]] = []
        self._greeting = {"node": node, "host": socket.gethostname(), "settings": settings}
        deadline = time.monotonic() + wait_seconds
        self._signalled = signalled
        while not any(map(self._join, endpoints())):
            if number := signalled():
                raise Terminated(number, None if number == signal.SIGINT else ExitCode.TRY_AGAIN)
            if time.monotonic() >= deadline:
                places = " or ".join(f"{address}:{port}" for address, port in endpoints()) or "any known address"
                raise Unavailable(
                    f"no launcher that leads the others answers at {places} for {wait_seconds:g} s",
                    "see how the launcher on the first node ended",
                )
            time.sleep(RETRY_SECONDS)

    def _join(self, endpoint: Endpoint) -> bool:
        """Return whether the leader is at `endpoint` and admits this node. Raises Refused if it does not."""
        connection = connect(endpoint)
        if connection is None:
            return False
        self._connection, self.address = connection, connection.local_address
        self.listener = listen(self.address, 0)
        self._connection.send({**self._greeting, "port": self.listener.getsockname()[1]})
        # A node that will lead listens already, and answers when it has the lock of SAVE.
        deadline = time.monotonic() + GREETING_SECONDS
        is_answered = False
        while connection.is_open and not is_answered and time.monotonic() < deadline and not self._signalled():
            is_answered = connection.wait(RETRY_SECONDS)
        answers = self._messages() if is_answered else []
        if answers and "welcome" in answers[0]:
            # The begin of an attempt may have come in the same moment.
            self._received = answers[1:]
            return True
        self._connection.close()
        self.listener.close()
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def send(self, message: dict[str, Any]) -> None:
        self._connection.send(message)

    def receive(self) -> list[dict[str, Any]]:
        """Return the leader's new messages, without waiting. Raise LeaderLost if the leader is lost."""
        messages, self._received = self._received + self._messages(), []
        if not messages and not self._connection.is_open:
            raise LeaderLost("the node that leads the others is lost", "start the job again: it goes on from SAVE")
        return messages

    def _messages(self) -> list[dict[str, Any]]:
        messages = self._connection.receive()
        for message in messages:
            if "refused" in message:
                raise Refused(str(message["refused"]), "start all nodes of a run with one command")
        return messages

    def wait(self, seconds: float) -> None:
        if not self._received:
            self._connection.wait(seconds)


def connect(endpoint: Endpoint) -> Connection | None:
    try:
        return Connection(socket.create_connection(endpoint, timeout=GREETING_SECONDS))
    except OSError:
        return None


def is_leader(endpoint: Endpoint) -> bool:
    """Whether a launcher that leads a run listens at `endpoint`. A leader refuses a node without a number."""
    connection = connect(endpoint)
    if connection is None:
        return False
    connection.send({})
    answers = connection.receive() if connection.wait(GREETING_SECONDS) else []
    connection.close()
    return any("refused" in answer for answer in answers)
