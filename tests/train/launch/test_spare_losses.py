"""Nodes of a run with spare nodes are lost at chosen moments: together, during a takeover, twice, the leader and its successor.

The launchers of all nodes are threads, each with an address of its own in 127.0.0.0/8. Their ranks are substitutes; the sockets,
messages and decisions are real. A node dies when its substitute raises `Killed` at a chosen call.
"""

import collections
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from reserved_ports import free_port

from lt_shared.console import ExitCode, ToolError
from lt_train.launch import copy_exchange, node_group, spare_run
from lt_train.launch.elastic_run import Nodes
from lt_train.launch.spare_run import SpareNodes
from lt_train.process.rank_environment import Node

TEST_SECONDS = 30.0
# Nobody is started again in these tests unless a test says so.
WAIT_FOR_NODES_SECONDS = 2.0
ADDRESS = "127.0.1.{}"
KILLED = -9


class Killed(BaseException):
    """The node's launcher is killed: the kernel closes its sockets, and it says nothing."""


class Substitute:
    """The ranks of one node, and their copies. The node dies at the calls in `deaths`.

    The calls are "begin" and "run" (an attempt begins, or is under way), "hold", "copies" (the leader asks for them) and "fetch".
    """

    def __init__(self, cluster: "Cluster", number: int):
        self._cluster = cluster
        self.number = number
        self.deaths: set[str] = set()
        self.signalled: int | None = None
        # The rank and the step of the copies of each attempt that has trained.
        self.attempts: list[tuple[int, int]] = []
        self.is_spare = False
        self.copied: dict[int, list[int]] = {}

    def die_at(self, call: str) -> None:
        if call in self.deaths:
            raise Killed

    def run(self, config: str, world_size: int, saves: bool, node: Node, watch: Callable[[], None], stored: int) -> int:
        """Train one step as soon as all ranks have met. Copies of it are then on this node and on the next one."""
        self.die_at("begin")
        meeting = self._cluster.meetings[node.master_port]
        meeting.add(node.node_rank)
        has_trained = False
        while True:
            watch()
            if len(meeting) == world_size and not has_trained:
                has_trained = True
                step = len(self._cluster.meetings)
                self.copied = {rank: [step] for rank in (node.node_rank, (node.node_rank - 1) % world_size)}
                self.attempts.append((node.node_rank, stored))
            if has_trained:
                self.die_at("run")
            if self._cluster.has_ended:
                return ExitCode.OK
            time.sleep(0.002)

    def hold(self) -> None:
        self.die_at("hold")

    def stand_by(self, config: str, count: int) -> None:
        self.is_spare = True

    def stop(self) -> None:
        """The substitutes have no processes."""

    poll = stop

    def send_copies_to(self, place: object, secret: bytes) -> None:
        """The copies are at once on the next node."""

    @property
    def copies(self) -> "Substitute":
        return self

    def steps(self) -> dict[int, list[int]]:
        self.die_at("copies")
        return dict(self.copied)

    def retain(self, step: int) -> None:
        self.copied = {rank: [step] for rank, steps in self.copied.items() if step in steps}


class Cluster:
    """A run on `count` nodes with a rank each; the last `spares` of them wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, spares: int, restarts: int):
        self.count, self.spares, self.restarts = count, spares, restarts
        self.port = free_port()
        self.has_ended = False
        self.codes: dict[int, object] = {}
        self.nodes: dict[int, Substitute] = {}
        # The ranks that have come to a rendezvous, by its port.
        self.meetings: collections.defaultdict[int, set[int]] = collections.defaultdict(set)
        self._lock_of_save = threading.Lock()
        self._thread = threading.local()
        monkeypatch.setattr(node_group, "connect", self._connect)
        monkeypatch.setattr(node_group.ports, "listen", lambda host, port: socket.create_server((host, port)))
        monkeypatch.setattr(copy_exchange, "fetch", self.fetch)
        monkeypatch.setattr(spare_run, "ANSWER_SECONDS", WAIT_FOR_NODES_SECONDS)
        monkeypatch.setattr(spare_run.starting_point, "fetch_start", lambda config: config)
        monkeypatch.setattr(spare_run.resume, "steps_done", lambda saving: 0)
        monkeypatch.setattr(spare_run.run_secret, "read", lambda *arguments: b"secret")
        monkeypatch.setattr(spare_run.crash_loop, "attempts", lambda directory: 0)
        monkeypatch.setattr(spare_run.crash_loop, "add_failed_start", lambda *arguments: None)
        monkeypatch.setattr(spare_run.crash_loop, "fingerprint", lambda config: "")
        for number in range(count):
            self.start(number)
        self.wait_for_attempt(1, range(count - spares))
        self.wait(lambda: all(self.nodes[number].is_spare for number in range(count - spares, count)))

    def _connect(self, endpoint: tuple[str, int]) -> node_group.Connection | None:
        """Connect from the address of the node that this thread is."""
        try:
            source = (ADDRESS.format(self._thread.number), 0)
            return node_group.Connection(socket.create_connection(endpoint, timeout=5, source_address=source))
        except OSError:
            return None

    def fetch(self, copies: Substitute, secret: bytes, host: str, port: int, rank: int, step: int) -> None:
        copies.die_at("fetch")
        holder = self.nodes[int(host.rpartition(".")[2])]
        if holder.number in self.codes or step not in holder.copied.get(rank, []):
            raise copy_exchange.ExchangeError(f"{host} has no copy of rank {rank}")
        copies.copied[rank] = [step]

    def start(self, number: int) -> None:
        self.codes.pop(number, None)
        self.nodes[number] = Substitute(self, number)
        threading.Thread(target=self._launch, args=(self.nodes[number],), daemon=True).start()

    def _launch(self, ranks: Substitute) -> None:
        self._thread.number = ranks.number
        faults = SimpleNamespace(
            wait_for_nodes_seconds=WAIT_FOR_NODES_SECONDS, timeout_seconds=TEST_SECONDS, max_restarts=self.restarts
        )
        saving = SimpleNamespace(replicate_interval=1, save="run", save_local=None, directory="run")
        parallelism = SimpleNamespace(world_size=self.count - self.spares)
        config: Any = SimpleNamespace(faults=faults, checkpointing=saving, parallelism=parallelism)
        config.to_json, config.at_step, config.digests = (lambda: "{}"), (lambda step: config), (lambda: {"batches": "1"})
        node = Node(ranks.number, self.count, None, ADDRESS.format(0), self.port, "srun")
        nodes = Nodes(node, config, lambda *counts: config, lambda config, is_first: config)
        spare_nodes: Any = SpareNodes(nodes, self.spares, self._open_directory)
        holds_lock = ranks.number == 0
        try:
            with self._open_directory(0, bool) if holds_lock else contextlib.nullcontext():
                self.codes[ranks.number] = spare_run.run(spare_nodes, ranks)  # type: ignore[arg-type]
        except Killed:
            self.codes[ranks.number] = KILLED
        except ToolError as error:
            self.codes[ranks.number] = error.exit_code
        except BaseException as error:
            # `wait` fails with it: a mistake in the launcher is what the tests look for.
            self.codes[ranks.number] = error

    @contextlib.contextmanager
    def _open_directory(self, seconds: float, ends: Callable[[], object]) -> Iterator[None]:
        assert self._lock_of_save.acquire(timeout=seconds)
        try:
            yield
        finally:
            self._lock_of_save.release()

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TEST_SECONDS
        while not condition():
            mistakes = [code for code in self.codes.values() if isinstance(code, BaseException)]
            assert not mistakes, mistakes
            assert time.monotonic() < deadline, {node.number: node.attempts for node in self.nodes.values()}
            time.sleep(0.002)

    def wait_for_attempt(self, number: int, nodes: "range | list[int]") -> None:
        """Wait until `nodes`, in the order of their ranks, run attempt `number` together."""
        places = {node: index for index, node in enumerate(nodes)}
        self.wait(
            lambda: (
                all(self.nodes[node].attempts and self.nodes[node].attempts[-1][0] == place for node, place in places.items())
                and max(len(node.attempts) for node in self.nodes.values()) >= number
            )
        )

    def end(self, *survivors: int) -> None:
        """Let the ranks end. The survivors must end with 0."""
        self.has_ended = True
        self.wait(lambda: all(number in self.codes for number in survivors))
        assert {number: self.codes[number] for number in survivors} == dict.fromkeys(survivors, ExitCode.OK)


def test_a_node_is_lost_while_the_others_are_asked_for_their_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, 5, spares=2, restarts=3)
    cluster.nodes[2].deaths = {"copies"}
    cluster.nodes[1].deaths = {"run"}
    cluster.wait_for_attempt(2, [0, 3, 4])
    cluster.end(0, 3, 4)
    assert (cluster.codes[1], cluster.codes[2]) == (KILLED, KILLED)


def test_the_spare_node_is_lost_while_it_fetches_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, 4, spares=2, restarts=3)
    cluster.nodes[2].deaths = {"fetch"}
    cluster.nodes[1].deaths = {"run"}
    cluster.wait_for_attempt(2, [0, 3])
    assert cluster.nodes[3].attempts == [(1, 1)], "the copies of the first attempt"
    cluster.end(0, 3)


def test_the_leader_is_lost_while_it_asks_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, 5, spares=2, restarts=3)
    cluster.nodes[0].deaths = {"copies"}
    cluster.nodes[1].deaths = {"run"}
    cluster.wait_for_attempt(2, [3, 4, 2])
    cluster.end(2, 3, 4)


def test_the_leader_is_lost_with_the_node_that_would_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, 5, spares=2, restarts=3)
    cluster.nodes[0].deaths = {"run", "hold", "copies"}
    cluster.nodes[1].deaths = {"run", "hold", "copies"}
    cluster.wait_for_attempt(2, [3, 4, 2])
    cluster.end(2, 3, 4)


def test_the_next_leader_is_lost_during_its_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, 5, spares=2, restarts=3)
    cluster.nodes[1].deaths = {"hold"}
    cluster.nodes[0].deaths = {"run"}
    cluster.wait_for_attempt(2, [3, 4, 2])
    cluster.end(2, 3, 4)


def test_a_node_is_lost_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, 2, spares=0, restarts=3)
    for attempt in (1, 2):
        cluster.nodes[1].deaths = {"run"}
        cluster.wait(lambda: 1 in cluster.codes)
        cluster.start(1)
        cluster.wait_for_attempt(attempt + 1, [0, 1])
    cluster.end(0, 1)


def test_all_other_nodes_are_lost_together(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, 4, spares=1, restarts=3)
    for number in (1, 2, 3):
        cluster.nodes[number].deaths = {"run", "copies", "hold"}
    cluster.wait(lambda: 0 in cluster.codes)
    assert cluster.codes[0] == ExitCode.UNAVAILABLE


def test_a_lost_leader_is_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last restart is used by the first loss: the loss of the leader ends the run, as the loss of another node would."""
    cluster = Cluster(monkeypatch, 5, spares=2, restarts=1)
    cluster.nodes[2].deaths = {"run"}
    cluster.wait_for_attempt(2, [0, 1, 3])
    cluster.nodes[0].deaths = {"run"}
    cluster.wait(lambda: all(number in cluster.codes for number in (1, 3, 4)))
    assert {cluster.codes[number] for number in (1, 3, 4)} == {ExitCode.IO}


def test_the_leader_goes_on_if_it_cannot_fetch_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader has lost the copies of its rank, and the node that has them is killed together with another one."""
    cluster = Cluster(monkeypatch, 5, spares=2, restarts=3)
    cluster.nodes[0].copied.pop(0)

    def die_first(copies: Substitute, *arguments: Any) -> None:
        cluster.wait(lambda: 1 in cluster.codes)
        monkeypatch.setattr(copy_exchange, "fetch", cluster.fetch)
        cluster.fetch(copies, *arguments)

    monkeypatch.setattr(copy_exchange, "fetch", die_first)
    cluster.nodes[1].deaths = {"begin"}
    cluster.nodes[2].deaths = {"run"}
    cluster.wait_for_attempt(2, [0, 4, 3])
    cluster.end(0, 3, 4)
