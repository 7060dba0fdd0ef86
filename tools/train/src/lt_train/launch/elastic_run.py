"""Run the ranks of several nodes, and go on with fewer nodes after one is lost (--min-nodes).

The launcher of one node leads (`lt_train.launch.node_group`), at the start the first one. If a node is lost, all nodes end their
ranks, and the leader waits --wait-for-nodes seconds for it. Then the largest usable number of nodes starts from the newest
checkpoint, which the ranks read in their new layout, as after a resume by hand with other nodes. The global batch and the order
of its samples stay. If a node comes later, the ranks end after their next checkpoint, and start again with it.

If the leader is lost, the lowest of the other nodes leads. It first takes the lock of the run's directory, so that two parts of a
divided network never both go on, and writes its address there, where a node that comes back finds it.
"""

import contextlib
import dataclasses
import json
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lt_shared.console import BadConfig, ExitCode, Terminated, ToolError, Unavailable, note, warn
from lt_shared.files import storage
from lt_train.checkpoint import resume, starting_point
from lt_train.config import cluster
from lt_train.config.run_config import RunConfig
from lt_train.launch import group_attempt
from lt_train.launch.group_attempt import POLL_SECONDS, STOP_SECONDS, NodesLost, OthersFailed, Stopped
from lt_train.launch.node_group import Endpoint, Leader, LeaderLost, Member, is_leader, listen
from lt_train.launch.rank_processes import RankKilled, Ranks
from lt_train.planner import memory_estimate, node_counts, search
from lt_train.planner.memory_advice import MemoryAdvice
from lt_train.process import restart_policy
from lt_train.process.ports import free_port
from lt_train.process.rank_environment import Node
from lt_train.process.restart_policy import NEXT_PHASE
from lt_train.train import crash_loop

# Time for a shared filesystem to free the lock of a host that is lost.
LOCK_SECONDS = 120.0
Resolve = Callable[[int, int], RunConfig]
Prepare = Callable[[RunConfig, bool], RunConfig]
OwnRun = Callable[[float, Callable[[], object]], contextlib.AbstractContextManager[None]]

LEADER_FILE = ".leader"


@dataclasses.dataclass
class Nodes:
    """The nodes that may take part in a run. `node` is this node, and `config` the configuration on all nodes.

    `resolve` resolves the configuration on a number of nodes with a number of ranks. `prepare` checks the data and chooses the
    checkpoint to start from. `own_run` is a context that has the run's directory for itself, for which it waits some
    seconds or until a signal. `directory` is this directory if another node may lead, else None.
    """

    node: Node
    config: RunConfig
    resolve: Resolve
    prepare: Prepare
    own_run: OwnRun | None = None
    directory: Path | None = None

    @property
    def number(self) -> int:
        return self.node.node_rank

    def endpoints(self) -> list[Endpoint]:
        """Return where the leader may be: where the run's directory says, or on the first node."""
        first = (self.node.master_address, self.node.master_port) if self.number else None
        return [endpoint for endpoint in (read_leader(self.directory), first) if endpoint]

    @property
    def ranks_per_node(self) -> int:
        return self.config.parallelism.world_size // self.node.nodes

    @property
    def settings(self) -> str:
        """A digest of the settings that all nodes must have alike."""
        return " ".join(f"{part}={digest}" for part, digest in self.config.digests().items())

    def config_on(self, count: int, is_first: bool) -> RunConfig:
        """Return the configuration of the next attempt, on `count` nodes."""
        resolved = self.resolve(count, count * self.ranks_per_node)
        faults = dataclasses.replace(resolved.faults, present_nodes=count, all_nodes=self.node.nodes)
        config = dataclasses.replace(resolved, data=self.config.data, faults=faults)
        return starting_point.fetch_start(self.prepare(config, is_first))

    def usable_counts(self) -> tuple[int, ...]:
        """Return the numbers of nodes that the run can go on with. Raises BadConfig if the run needs all nodes."""
        least, most = self.config.faults.min_nodes or self.node.nodes, self.node.nodes
        if least > most:
            raise BadConfig(f"--min-nodes {least}, and the job has {most} node(s)", f"--min-nodes {most - 1} or less")
        if least == most:
            return (most,)
        return (*node_counts.usable_counts(least, most - 1, self._check, f"--min-nodes {least}"), most)

    def _check(self, count: int) -> None:
        """Raise BadConfig if the layout, the batch or the memory of the ranks does not allow `count` nodes."""
        config = self.resolve(count, count * self.ranks_per_node)
        parallel = config.parallelism
        here = cluster.local_cluster(parallel.device, parallel.world_size, count)
        if shortage := search.memory_shortage(memory_estimate.estimate(config).fullest_rank, here):
            raise BadConfig(f"the plan does not fit: {shortage.reason}", MemoryAdvice(config).text(shortage.is_certain))

    def rank_node(self, nodes: Sequence[int], address: Endpoint) -> Node:
        """Return this node as the ranks see it in an attempt of `nodes`, which meet at `address`."""
        place = nodes.index(self.number)
        return dataclasses.replace(
            self.node, node_rank=place, nodes=len(nodes), master_address=address[0], master_port=address[1]
        )


def read_leader(directory: Path | None) -> Endpoint | None:
    """Read where the launcher that leads the run in `directory` listens. It may have ended."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        record = json.loads((directory / LEADER_FILE).read_bytes()) if directory else {}
        return str(record["address"]), int(record["port"])
    return None


def has_leader(directory: Path | None) -> bool:
    """Whether another launcher leads the run in `directory`, because this one was lost before."""
    leader = read_leader(directory)
    return leader is not None and is_leader(leader)


def run(nodes: Nodes, ranks: Ranks, is_first: bool) -> int:
    """Run this node's part of the run to its end. Return the exit code of the run.

    If `is_first`, this launcher leads at the start. Raises as `LeadingRun.run` and `FollowingRun.run`.
    """
    node, faults = nodes.node, nodes.config.faults
    # At the start, some nodes may still load an image.
    start_seconds = max(faults.timeout_seconds, faults.wait_for_nodes_seconds)
    role: LeadingRun | FollowingRun = FollowingRun(nodes, nodes.endpoints, start_seconds)
    if is_first:
        role = LeadingRun(nodes, listen(node.master_address, node.master_port), node.master_address, start_seconds)
    with contextlib.ExitStack() as stack:
        while True:
            try:
                return role.run(ranks)
            except LeaderLost:
                ranks.stop()
                if isinstance(role, LeadingRun) or nodes.own_run is None or nodes.directory is None or not role.members:
                    raise
                # The next leader has the lowest number in the attempt.
                lowest = min(role.members)
                if lowest == nodes.number:
                    warn("the node that led the others is lost: this node leads them now")
                    stack.enter_context(nodes.own_run(max(LOCK_SECONDS, faults.wait_for_nodes_seconds), lambda: ranks.signalled))
                    role = LeadingRun(nodes, role.listener, role.address, faults.wait_for_nodes_seconds)
                else:
                    endpoints = [role.members[lowest]]
                    role = FollowingRun(nodes, endpoints.copy, start_seconds)


class LeadingRun:
    """The run on the node that decides which nodes take part in each attempt. Others find it by `listener`, at `address`.

    The first attempt waits for all nodes for `first_wait_seconds`.
    """

    def __init__(self, nodes: Nodes, listener: socket.socket, address: str, first_wait_seconds: float):
        self._nodes = nodes
        self._faults = nodes.config.faults
        self._counts = nodes.usable_counts()
        self._listener, self._address = listener, address
        self._first_wait_seconds = first_wait_seconds

    def run(self, ranks: Ranks) -> int:
        """Run attempts until the run ends on all nodes. Return the exit code of the run.

        Raises Unavailable if too few nodes come, and RankKilled if a signal ended a rank and no restart is left.
        """
        nodes = self._nodes
        with self._recorded(), Leader(self._listener, nodes.number, nodes.node.nodes, nodes.settings) as group:
            try:
                code = self._run(ranks, group)
            except (ToolError, Terminated) as error:
                group.finish(error.exit_code)
                raise
            group.finish(code)
            return code

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        """Record in the run's directory where this launcher listens, while it leads."""
        directory = self._nodes.directory
        if directory is None:
            yield
            return
        record = {"v": 1, "address": self._address, "port": self._listener.getsockname()[1]}
        storage.write_bytes(directory / LEADER_FILE, json.dumps(record).encode())
        try:
            yield
        finally:
            (directory / LEADER_FILE).unlink(missing_ok=True)

    def _run(self, ranks: Ranks, group: Leader) -> int:
        restarts_left, wait_seconds = self._faults.max_restarts, self._first_wait_seconds
        while True:
            present = self._gather(ranks, group, wait_seconds)
            if ranks.signalled:
                return ExitCode.TRY_AGAIN
            wait_seconds = self._faults.wait_for_nodes_seconds
            try:
                code = self._attempt(ranks, group, present)
            except NodesLost:
                lost = group.describe_lost(f" of {self._nodes.node.nodes}")
                note(f"{lost}: waiting up to {wait_seconds:g} s")
                continue
            except RankKilled as error:
                if not restarts_left:
                    raise
                warn(str(error))
                code = error.exit_code
            if code == NEXT_PHASE:
                wait_seconds = 0.0
            elif restarts_left and restart_policy.starts_ranks_again(code):
                restarts_left -= 1
                note(f"starting the ranks again, {restarts_left} more time(s) after this")
            else:
                return code

    def _gather(self, ranks: Ranks, group: Leader, wait_seconds: float) -> list[int]:
        """Wait for all nodes, then take the largest usable number. Return early after a signal."""
        deadline, all_nodes = time.monotonic() + wait_seconds, self._nodes.node.nodes
        while not ranks.signalled:
            group.poll()
            present = group.present
            if len(present) == all_nodes:
                return present
            if time.monotonic() >= deadline:
                count = max((count for count in self._counts if count <= len(present)), default=0)
                if not count:
                    reason = f"{len(present)} of {all_nodes} node(s) came within {wait_seconds:g} s"
                    raise Unavailable(
                        f"{reason}, and the run goes on with {' or '.join(map(str, self._counts))}",
                        "see how the launchers of the others ended; the same command continues the run",
                    )
                return present[:count]
            time.sleep(POLL_SECONDS)
        return []

    def _attempt(self, ranks: Ranks, group: Leader, present: list[int]) -> int:
        """Run the ranks on the nodes `present`. Return the exit code of the run's ranks.

        Raises NodesLost, and RankKilled if a signal ended a rank of this node.
        """
        config = self._nodes.config_on(len(present), True)
        saving, all_nodes = config.checkpointing, self._nodes.node.nodes
        step = resume.steps_done(saving)
        if len(present) < all_nodes or step:
            newer = ", or from newer local copies" if saving.save_local else ""
            note(f"going on with {len(present)} of {all_nodes} node(s) from iteration {step}{newer}")
        address, attempts_before = (self._address, free_port()), crash_loop.attempts(saving.directory)
        group.begin(present, address, step)
        code: int = ExitCode.OK
        try:
            local_node = self._nodes.rank_node(present, address)
            code = self._code_of_all(ranks, group, config.to_json(), config.parallelism.world_size, local_node)
        except OthersFailed as failed:
            code = failed.code
        except RankKilled as error:
            code = error.exit_code
            raise
        finally:
            ranks.stop()
            self._stop_others(group)
            if restart_policy.starts_ranks_again(code) and crash_loop.attempts(saving.directory) == attempts_before:
                crash_loop.add_failed_start(saving, crash_loop.fingerprint(config))
        return code

    def _code_of_all(self, ranks: Ranks, group: Leader, config: str, world_size: int, local_node: Node) -> int:
        def watch() -> None:
            group_attempt.check_others(group)
            self._ask_for_more(ranks, group, local_node.nodes)

        code = ranks.run(config, world_size, True, local_node, watch)
        group_attempt.wait_for_others(group, code, watch)
        if code == ExitCode.TRY_AGAIN and group.lost:
            raise NodesLost
        return group_attempt.code_of_all(group, code)

    def _ask_for_more(self, ranks: Ranks, group: Leader, running: int) -> None:
        """Let the ranks end after their next checkpoint if enough nodes have come for a larger number."""
        present = group.present
        if not any(running < count <= len(present) for count in self._counts):
            return
        if not ranks.regroup_file.exists():
            ranks.regroup_file.touch()
            note(f"{len(present)} of {self._nodes.node.nodes} node(s) are there: all take part after the next checkpoint")

    def _stop_others(self, group: Leader) -> None:
        """Wait until the other nodes have no ranks, because the next attempt needs their GPUs."""
        group.stop()
        deadline = time.monotonic() + STOP_SECONDS
        while not group.is_complete and time.monotonic() < deadline:
            group.poll()
            time.sleep(POLL_SECONDS)
        group.give_up()


class FollowingRun:
    """The run on another node: start and end ranks as the leader says. The leader is at one of the `endpoints`.

    After a first attempt has begun, `members` has its other nodes than the leader, with the addresses at which they listen. This
    node listens by `listener`, at `address`.
    """

    def __init__(self, nodes: Nodes, endpoints: Callable[[], Sequence[Endpoint]], wait_seconds: float):
        self._nodes = nodes
        self._endpoints = endpoints
        self._wait_seconds = wait_seconds
        self._messages: deque[dict[str, Any]] = deque()
        self.members: dict[int, Endpoint] = {}

    def run(self, ranks: Ranks) -> int:
        """Run attempts until the leader ends the run. Return the exit code of the run.

        A signal to this launcher ends this node's part of the run alone. Raises LeaderLost, Unavailable if no leader answers, and
        BadConfig if it refuses this node.
        """
        nodes = self._nodes
        with Member(self._endpoints, nodes.number, nodes.settings, self._wait_seconds, lambda: ranks.signalled) as group:
            self.listener, self.address = group.listener, group.address
            while True:
                message = self._next(ranks, group)
                if message is None:
                    group.send({"leaves": True})
                    return ExitCode.TRY_AGAIN
                if "finish" in message:
                    return int(message["finish"])
                if "begin" in message:
                    code = self._attempt(ranks, group, message)
                    group.send({"ended": code, "attempt": message["begin"], "leaves": ranks.signalled is not None})

    def _next(self, ranks: Ranks, group: Member) -> dict[str, Any] | None:
        """Return the next message; None after a signal."""
        while not self._messages:
            if ranks.signalled:
                return None
            group.wait(POLL_SECONDS)
            self._messages.extend(group.receive())
        return self._messages.popleft()

    def _attempt(self, ranks: Ranks, group: Member, begin: dict[str, Any]) -> int | None:
        """Run this node's ranks. Return their exit code, None if the leader has ended them."""
        numbers, (host, port) = begin["nodes"], begin["address"]
        self.members = {int(number): (address, member_port) for number, (address, member_port) in begin["members"].items()}
        config = self._nodes.config_on(len(numbers), False).at_step(begin["step"])
        local_node = self._nodes.rank_node(numbers, (host, port))

        def watch() -> None:
            messages = group.receive()
            if any(("stop" in message and message["stop"] == begin["begin"]) or "finish" in message for message in messages):
                self._messages.extend(message for message in messages if "stop" not in message)
                raise Stopped

        try:
            return ranks.run(config.to_json(), config.parallelism.world_size, True, local_node, watch)
        except Stopped:
            return None
        except RankKilled as error:
            warn(str(error))
            return error.exit_code
        finally:
            ranks.stop()
