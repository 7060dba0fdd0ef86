"""Run the ranks of several nodes, and replace a lost node by a spare one whose ranks have started already (--spare-nodes).

The launcher of the first node leads (`lt_train.launch.node_group`). If a node or a rank is lost, the ranks of the other nodes
leave their process groups and wait. The spare node takes the lost node's place and fetches the copies of its ranks' states from
the node that has them (--replicate-interval), and all ranks meet again. If two nodes with the same copies are lost, the ranks
start from --save-local, or from the newest checkpoint. If the first node is lost, the next node with ranks leads.
"""

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Collection
from typing import Any

from lt_shared.console import ExitCode, IoFailure, Terminated, ToolError, Unavailable, note, warn
from lt_train.checkpoint import resume, starting_point
from lt_train.launch import group_attempt, run_secret, spare_group
from lt_train.launch.copy_exchange import CopyServer
from lt_train.launch.elastic_run import Nodes, OwnRun
from lt_train.launch.group_attempt import POLL_SECONDS, NodesLost, OthersFailed, Stopped
from lt_train.launch.node_group import Member
from lt_train.launch.rank_processes import RankKilled, Ranks
from lt_train.launch.spare_group import Group, Inventory, SpareLeader
from lt_train.process import restart_policy
from lt_train.process.ports import free_port
from lt_train.process.rank_environment import Node, format_ranks
from lt_train.train import crash_loop

# Time for the launchers to answer after a loss.
ANSWER_SECONDS = 10.0


class LeaderLost(Exception):
    """The node that leads is lost. `group` is the group that it led."""

    def __init__(self, group: Group):
        super().__init__()
        self.group = group


class Held(Exception):
    """The leader lets the ranks of the present attempt wait, because ranks of another node are lost."""


@dataclasses.dataclass
class SpareNodes:
    """The nodes of a run; `spares` of the nodes wait. `nodes.config` is the configuration on the nodes with ranks."""

    nodes: Nodes
    spares: int
    open_directory: OwnRun
    """Returns a context that holds the lock of SAVE, for a node that leads after the first one is lost. Its
    arguments are those of `own_run`."""

    @property
    def leader_seconds(self) -> float:
        """How long the next leader waits for the lock, and the other nodes for that leader.

        The kernel closes the connections of a killed launcher first, and the lock after it has freed the copies in memory.
        """
        return max(ANSWER_SECONDS, self.nodes.config.faults.wait_for_nodes_seconds)

    @property
    def active(self) -> int:
        return self.nodes.node.nodes - self.spares

    @property
    def ranks_per_node(self) -> int:
        return self.nodes.config.parallelism.world_size // self.active

    def next_config(self, is_first: bool, step: int | None = None) -> Any:
        """Return the configuration of the next attempt, with the newest checkpoint in SAVE."""
        config = self.nodes.prepare(self.nodes.config, is_first)
        return starting_point.fetch_start(config if step is None else config.at_step(step))

    def secret(self, is_first: bool) -> bytes:
        """Return the secret of the run, empty if no copies are exchanged."""
        saving = self.nodes.config.checkpointing
        if saving.replicate_interval is None or saving.save is None:
            return b""
        faults = self.nodes.config.faults
        return run_secret.read(saving.save, is_first, max(faults.timeout_seconds, faults.wait_for_nodes_seconds))

    def rank_node(self, number: int, nodes: list[int], port: int, address: str) -> Node:
        node = self.nodes.node
        return dataclasses.replace(
            node, node_rank=nodes.index(number), nodes=len(nodes), master_port=port, master_address=address
        )


def run(nodes: SpareNodes, ranks: Ranks) -> int:
    """Run this node's part of the run to its end. Return the exit code of the run.

    Raises Unavailable if too few nodes come, BadConfig if the leader refuses this node, and RankKilled if a signal ended a rank
    of the leader and no restart is left.
    """
    node = nodes.nodes.node
    is_first = node.node_rank == 0
    secret = nodes.secret(is_first)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(CopyServer(ranks.copies, secret)) if secret else None
        exchange = Exchange(secret, server.port if server else 0)
        role: LeadingSpareRun | FollowingSpareRun
        role = LeadingSpareRun(nodes, exchange) if is_first else FollowingSpareRun(nodes, exchange)
        while True:
            try:
                return role.run(ranks)
            except LeaderLost as lost:
                if not lost.group.restarts:
                    raise IoFailure("the node that leads is lost, and no restart is left", "raise --max-restarts") from None
                ranks.hold()
                leader = lost.group.successors[0]
                if node.node_rank == leader:
                    warn(f"the node that leads is lost, and node {leader} leads now")
                    stack.enter_context(nodes.open_directory(nodes.leader_seconds, lambda: ranks.signalled))
                    role = LeadingSpareRun(nodes, exchange, lost.group)
                else:
                    role = FollowingSpareRun(nodes, exchange, lost.group)


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The secret of the run, empty if no copies are exchanged, and the port where this launcher serves copies."""

    secret: bytes
    port: int


class LeadingSpareRun:
    """The run on the node that decides which nodes have ranks: the first one, or after its loss a member of its `group`."""

    def __init__(self, nodes: SpareNodes, exchange: Exchange, group: Group | None = None):
        self._spare_nodes = nodes
        self._nodes = nodes.nodes
        self._config = nodes.nodes.config
        self._exchange = exchange
        self._number = nodes.nodes.node.node_rank
        self._group = group
        self._inventories: dict[int, Inventory] = {}
        self._had_copies = group is not None and bool(exchange.secret)

    def run(self, ranks: Ranks) -> int:
        """Run attempts until the run ends on all nodes. Return the exit code of the run."""
        node = self._nodes.node
        address = self._group.hosts[self._number] if self._group else node.master_address
        with SpareLeader(address, node.master_port, node.nodes, self._nodes.settings, self._number) as group:
            try:
                code = self._run(ranks, group)
            except (ToolError, Terminated) as error:
                group.finish(error.exit_code)
                raise
            group.finish(code)
            return code

    def _run(self, ranks: Ranks, group: SpareLeader) -> int:
        restarts_left = self._group.restarts - 1 if self._group else self._config.faults.max_restarts
        if self._group:
            expected = set(self._group.hosts)
            positions = self._gather(ranks, group, self._group.nodes, expected, ANSWER_SECONDS)
        else:
            expected = set(range(self._spare_nodes.active))
            positions = self._gather(ranks, group, sorted(expected), expected, self._config.faults.wait_for_nodes_seconds)
        while True:
            if ranks.signalled:
                return ExitCode.TRY_AGAIN
            try:
                code = self._attempt(ranks, group, positions, restarts_left)
            except NodesLost:
                warn(group.describe_lost())
                code = ExitCode.IO
            except RankKilled as error:
                if not restarts_left:
                    raise
                warn(str(error))
                code = error.exit_code
            if code != restart_policy.NEXT_PHASE and not (restarts_left and restart_policy.starts_ranks_again(code)):
                return code
            restarts_left -= code != restart_policy.NEXT_PHASE
            ranks.hold()
            positions = self._gather(ranks, group, positions)
            note(f"starting the ranks again, {restarts_left} more time(s) after this")

    def _gather(
        self,
        ranks: Ranks,
        group: SpareLeader,
        positions: list[int],
        expected: Collection[int] = (),
        expected_seconds: float = 0.0,
    ) -> list[int]:
        """Wait until all positions have a node, and let all launchers say which copies they have. Return the nodes in order.

        Spare nodes take the places of `expected` nodes only after `expected_seconds`.
        """
        while True:
            nodes = self._place(ranks, group, positions, expected, expected_seconds)
            self._ask_for_copies(ranks, group)
            # Of nodes that are killed together, one may be known to be lost only while the others answer.
            if ranks.signalled or set(nodes) <= set(group.present):
                return nodes

    def _place(
        self, ranks: Ranks, group: SpareLeader, positions: list[int], expected: Collection[int], expected_seconds: float
    ) -> list[int]:
        began = time.monotonic()
        deadline = began + self._config.faults.wait_for_nodes_seconds
        while True:
            group.poll()
            is_late = time.monotonic() >= deadline
            are_all_there = set(expected) <= set(group.present) or time.monotonic() >= began + expected_seconds
            waiting = [node for node in group.present if node not in positions] if are_all_there else []
            placed = [node if node in group.present else waiting.pop(0) if waiting else None for node in positions]
            if None not in placed or ranks.signalled:
                return [node for node in placed if node is not None]
            if is_late:
                raise Unavailable(
                    f"{sum(node is not None for node in placed)} of {len(positions)} node(s) with ranks are there",
                    "see how the launchers of the others ended; the same command continues the run",
                )
            time.sleep(POLL_SECONDS)

    def _ask_for_copies(self, ranks: Ranks, group: SpareLeader) -> None:
        group.hold()
        deadline = time.monotonic() + ANSWER_SECONDS
        while not group.have_answered and time.monotonic() < deadline:
            group.poll()
            time.sleep(POLL_SECONDS / 5)
        place = [group.local_address, self._exchange.port]
        self._inventories = {self._number: Inventory(ranks.copies.steps(), place)} | group.inventories

    def _attempt(self, ranks: Ranks, group: SpareLeader, positions: list[int], restarts_left: int) -> int:
        world_size = self._config.parallelism.world_size
        stored = spare_group.choose_step(self._inventories, world_size)
        self._tell_copies(stored, world_size)
        config = self._spare_nodes.next_config(is_first=True)
        saving = config.checkpointing
        step = resume.steps_done(saving)
        extras = spare_group.extras(positions, self._spare_nodes.ranks_per_node, stored, self._inventories)
        address, port = group.address(positions[0]), free_port()
        attempts_before = crash_loop.attempts(saving.directory)
        group.begin_with(positions, [address, port], step, extras, restarts_left)
        code: int = ExitCode.OK
        try:
            local_node = self._spare_nodes.rank_node(self._number, positions, port, address)
            if spare_group.take_copies(ranks, extras[self._number], self._exchange.secret):
                code = self._code_of_all(ranks, group, config.to_json(), local_node, stored)
            else:
                code = ExitCode.IO
            return code
        except OthersFailed as failed:
            code = failed.code
            return code
        except RankKilled as error:
            code = error.exit_code
            raise
        finally:
            if restart_policy.starts_ranks_again(code) and crash_loop.attempts(saving.directory) == attempts_before:
                crash_loop.add_failed_start(saving, crash_loop.fingerprint(config))

    def _tell_copies(self, stored: int, world_size: int) -> None:
        """Say which copies the run goes on from, or which ranks have none."""
        if stored:
            note(f"going on from the copies of iteration {stored} in memory, if no checkpoint is newer")
        elif self._had_copies:
            present = {rank for inventory in self._inventories.values() for rank, steps in inventory.steps.items() if steps}
            lost = [rank for rank in range(world_size) if rank not in present]
            who = f"of rank(s) {format_ranks(lost)}" if lost else "of one step for all ranks"
            other = "--save-local or a checkpoint" if self._config.checkpointing.save_local else "a checkpoint"
            warn(f"no node has copies in memory {who}: going on from {other}")
        self._had_copies |= any(steps for inventory in self._inventories.values() for steps in inventory.steps.values())

    def _code_of_all(self, ranks: Ranks, group: SpareLeader, config: str, local_node: Node, stored: int) -> int:
        def watch() -> None:
            group_attempt.check_others(group)

        self._had_copies |= self._config.checkpointing.replicate_interval is not None
        code = ranks.run(config, self._config.parallelism.world_size, True, local_node, watch, stored)
        group_attempt.wait_for_others(group, code, watch)
        return group_attempt.code_of_all(group, code)


class FollowingSpareRun:
    """The run on another node, which has ranks or waits as a spare. `group` is the group of a leader that was lost."""

    def __init__(self, nodes: SpareNodes, exchange: Exchange, group: Group | None = None):
        self._spare_nodes = nodes
        self._nodes = nodes.nodes
        self._exchange = exchange
        self._lost_group = group
        self._group: Group | None = None
        self._messages: deque[dict[str, Any]] = deque()

    def run(self, ranks: Ranks) -> int:
        """Run attempts until the leader ends the run. Return the exit code of the run. Raises LeaderLost."""
        node, faults = self._nodes.node, self._nodes.config.faults
        address, seconds = node.master_address, max(faults.timeout_seconds, faults.wait_for_nodes_seconds)
        # Who leads next if the new leader is lost before it has told its group.
        next_group = None
        if self._lost_group:
            address, seconds = self._lost_group.hosts[self._lost_group.successors[0]], self._spare_nodes.leader_seconds
            next_group = self._lost_group.without_successor()
        endpoints, settings = [(address, node.master_port)], self._nodes.settings
        try:
            member = Member(endpoints.copy, node.node_rank, settings, seconds, lambda: ranks.signalled)
        except Unavailable:
            if next_group is None:
                raise
            raise LeaderLost(next_group) from None
        with member as group:
            if node.node_rank >= self._spare_nodes.active and self._lost_group is None:
                note(f"node {node.node_rank} is a spare: it waits for the loss of another node")
                ranks.stand_by(self._nodes.config.to_json(), self._spare_nodes.ranks_per_node)
            try:
                return self._follow(ranks, group)
            except Unavailable:
                lost_group = self._group or next_group
                if lost_group is None:
                    raise
                raise LeaderLost(lost_group) from None

    def _follow(self, ranks: Ranks, group: Member) -> int:
        """Obey the leader. Return the exit code of the run. Raises Unavailable if the leader is lost."""
        while True:
            message = self._next(ranks, group)
            if message is None:
                group.send({"leaves": True})
                return ExitCode.TRY_AGAIN
            if "finish" in message:
                return int(message["finish"])
            if "hold" in message:
                self._answer(ranks, group, message["hold"])
            if "group" in message:
                self._group = Group.read(message["group"])
            if "begin" in message:
                self._run_attempt(ranks, group, message)

    def _next(self, ranks: Ranks, group: Member) -> dict[str, Any] | None:
        """Return the next message; None after a signal."""
        while not self._messages:
            if ranks.signalled:
                return None
            group.wait(POLL_SECONDS)
            ranks.poll()
            self._messages.extend(group.receive())
        return self._messages.popleft()

    def _answer(self, ranks: Ranks, group: Member, attempt: int) -> None:
        group.send({"held": attempt, "copies": ranks.copies.steps(), "port": self._exchange.port})

    def _run_attempt(self, ranks: Ranks, group: Member, begin: dict[str, Any]) -> None:
        try:
            code = self._attempt(ranks, group, begin)
        except Held:
            ranks.hold()
            self._answer(ranks, group, begin["begin"])
            return
        group.send({"ended": code, "attempt": begin["begin"], "leaves": ranks.signalled is not None})

    def _attempt(self, ranks: Ranks, group: Member, begin: dict[str, Any]) -> int | None:
        """Run this node's ranks. Return their exit code, None if the leader has ended them."""
        config = self._spare_nodes.next_config(False, begin["step"])
        node = self._nodes.node
        local_node = self._spare_nodes.rank_node(node.node_rank, begin["nodes"], begin["port"], begin["address"])

        def watch() -> None:
            for message in group.receive():
                if "group" in message:
                    self._group = Group.read(message["group"])
                if message.get("hold") == begin["begin"]:
                    raise Held
                if message.get("stop") == begin["begin"]:
                    raise Stopped
                self._messages.append(message)
                if "finish" in message:
                    raise Stopped

        try:
            if not spare_group.take_copies(ranks, begin, self._exchange.secret):
                return ExitCode.IO
            return ranks.run(config.to_json(), config.parallelism.world_size, True, local_node, watch, begin["stored"])
        except Stopped:
            ranks.stop()
            return None
        except RankKilled as error:
            warn(str(error))
            return error.exit_code
