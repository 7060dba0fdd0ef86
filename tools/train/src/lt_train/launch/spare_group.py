"""Messages between the launchers of a run that has spare nodes, in addition to `lt_train.launch.node_group`.

    leader to member    {"hold": 3}     ranks are lost: the other ranks wait, and nobody ends
                        {"begin": 4, ..., "stored": 40, "fetch": {"2": [HOST, PORT]}, "next": [HOST, PORT]}
    member to leader    {"held": 3, "copies": {"2": [30, 40]}, "port": 41234}

`stored` is the step of the copies that all ranks restore, `fetch` the launchers that have the copies that this node lacks, and
`next` the launcher that gets this node's copies.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lt_train.launch.kept_copies import newest_common
from lt_train.launch.node_group import Leader

Place = list[Any]
"""Host and port of a launcher's copies."""


@dataclasses.dataclass(frozen=True)
class Inventory:
    """The steps of complete copies by rank that a node has, and where other launchers fetch them."""

    steps: dict[int, list[int]]
    place: Place


class SpareLeader(Leader):
    """The side of the first node. `inventories` has the answers of the members that hold their ranks."""

    inventories: dict[int, Inventory]

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
        return self._members[node].host

    def begin_with(self, nodes: Sequence[int], port: int, step: int, extras: Mapping[int, dict[str, Any]]) -> None:
        """Tell `nodes` to begin the next attempt, each with its part of `extras`."""
        self._attempt += 1
        self._running = set(nodes) - {0}
        self.endings, self.lost = {}, {}
        for node in self._running:
            message = {"begin": self._attempt, "nodes": list(nodes), "port": port, "step": step}
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
