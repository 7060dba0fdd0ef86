"""Messages between the launchers of a run that has spare nodes, in addition to `lt_train.launch.node_group`.

    leader to member    {"hold": 3}     ranks are lost: the other ranks wait, and nobody ends
                        {"begin": 4, ..., "stored": 40, "fetch": {"2": [HOST, PORT]}, "next": [HOST, PORT]}
                        {"group": {"hosts": {"1": HOST, "2": HOST}, "nodes": [0, 1], "restarts": 2}}
    member to leader    {"held": 3, "copies": {"2": [30, 40]}, "port": 41234}

`stored` is the step of the copies that all ranks restore, `fetch` the launchers that have the copies that this node lacks, and
`next` the launcher that gets this node's copies. `group` has what a member needs to lead when the leader is lost.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

from lt_shared.console import warn
from lt_train.launch import copy_exchange
from lt_train.launch.kept_copies import newest_common
from lt_train.launch.node_group import Leader, listen
from lt_train.launch.rank_processes import Ranks

Place = list[Any]
"""Host and port of a launcher's copies."""


@dataclasses.dataclass(frozen=True)
class Inventory:
    """The steps of complete copies by rank that a node has, and where other launchers fetch them."""

    steps: dict[int, list[int]]
    place: Place


@dataclasses.dataclass(frozen=True)
class Group:
    """The members by number with their hosts, the nodes with ranks in order, and the number of restarts that are left."""

    hosts: dict[int, str]
    nodes: list[int]
    restarts: int

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> Self:
        hosts = {int(node): str(host) for node, host in message["hosts"].items()}
        return cls(hosts, [int(node) for node in message["nodes"]], int(message["restarts"]))

    @property
    def successors(self) -> list[int]:
        """The members in the order of their turn to lead when the leader is lost: first those that have ranks."""
        return sorted(self.hosts, key=lambda node: (node not in self.nodes, node))

    def without_successor(self) -> Self:
        """Return the group without the member whose turn it was to lead, because that member is lost, too."""
        remaining = self.successors[1:]
        return dataclasses.replace(self, hosts={node: self.hosts[node] for node in remaining})


class SpareLeader(Leader):
    """The side of the node that leads. `inventories` has the answers of the members that hold their ranks."""

    def __init__(self, address: str, port: int, nodes: int, settings: str, number: int = 0):
        super().__init__(listen(address, port), number, nodes, settings)
        self.local_address = address
        self.inventories: dict[int, Inventory] = {}
        # The nodes with ranks and the restarts that are left, and the hosts that the members know.
        self._plan: dict[str, Any] | None = None
        self._told_hosts: dict[int, str] = {}

    def poll(self) -> None:
        super().poll()
        self._tell_group()

    def _tell_group(self) -> None:
        """Tell all members who leads when this node is lost. A spare node may come after the ranks have begun."""
        hosts = {node: connection.host for node, connection in self._members.items()}
        if self._plan is not None and hosts != self._told_hosts:
            self._told_hosts = hosts
            for connection in list(self._members.values()):
                connection.send({"group": {"hosts": hosts, **self._plan}})

    @property
    def present(self) -> list[int]:
        return sorted((self.number, *self._members))

    def _read(self, node: int, message: dict[str, Any]) -> None:
        if message.get("held") != self._attempt:
            super()._read(node, message)
            return
        steps = {int(rank): [int(step) for step in steps] for rank, steps in message["copies"].items()}
        self.inventories[node] = Inventory(steps, [self._members[node].host, int(message["port"])])

    def hold(self) -> None:
        """Ask all members for their copies, and let their ranks wait."""
        self.inventories = {}
        for connection in self._members.values():
            connection.send({"hold": self._attempt})

    @property
    def have_answered(self) -> bool:
        """Whether all members that are not lost have answered `hold`."""
        return self._members.keys() <= self.inventories.keys()

    def address(self, node: int) -> str:
        """Return the address of the host where ranks of `node` listen."""
        return self.local_address if node == self.number else self._members[node].host

    def begin_with(
        self, nodes: Sequence[int], rendezvous: Place, step: int, extras: Mapping[int, dict[str, Any]], restarts: int
    ) -> None:
        """Tell `nodes` to begin the next attempt at `rendezvous`, each with its part of `extras`, and all members the group."""
        self._attempt += 1
        self._running = set(nodes) - {self.number}
        self.endings, self.lost = {}, {}
        self._plan, self._told_hosts = {"nodes": list(nodes), "restarts": restarts}, {}
        self._tell_group()
        address, port = rendezvous
        for node in self._running:
            message = {"begin": self._attempt, "nodes": list(nodes), "address": address, "port": port, "step": step}
            self._members[node].send(message | dict(extras[node]))


def choose_step(inventories: Mapping[int, Inventory], ranks: int) -> int:
    """Return the newest step that every rank has on some node, 0 if there is none."""
    return newest_common([inventory.steps for inventory in inventories.values()], range(ranks))


def extras(
    nodes: Sequence[int], ranks_per_node: int, step: int, inventories: Mapping[int, Inventory]
) -> dict[int, dict[str, Any]]:
    """Return by node what it fetches before it restores `step`, and where it sends its copies."""
    by_node: dict[int, dict[str, Any]] = {}
    for index, node in enumerate(nodes):
        ranks = range(index * ranks_per_node, (index + 1) * ranks_per_node)
        lacking = [rank for rank in ranks if step and step not in _steps(inventories, node, rank)]
        fetch = {}
        for rank in lacking:
            holder = next(other for other in inventories if step in _steps(inventories, other, rank))
            fetch[str(rank)] = inventories[holder].place
        successor = nodes[(index + 1) % len(nodes)]
        place = inventories[successor].place if successor != node and successor in inventories else None
        by_node[node] = {"stored": step, "fetch": fetch, "next": place}
    return by_node


def _steps(inventories: Mapping[int, Inventory], node: int, rank: int) -> list[int]:
    return inventories[node].steps.get(rank, []) if node in inventories else []


def take_copies(ranks: Ranks, begin: dict[str, Any], secret: bytes) -> bool:
    """Drop other copies than those to restore, fetch the copies that this node lacks, and send later copies to the next node.

    Return False if a copy cannot be fetched, because its launcher is lost. Then this node keeps no copies: with them, the next
    attempt would ask for the same copy.
    """
    step = begin["stored"]
    ranks.copies.retain(step)
    try:
        for rank, (host, port) in begin["fetch"].items():
            copy_exchange.fetch(ranks.copies, secret, host, port, int(rank), step)
    except OSError as error:
        warn(f"a copy in memory could not be fetched: {error}")
        ranks.copies.retain(0)
        return False
    ranks.send_copies_to(begin["next"], secret)
    return True
