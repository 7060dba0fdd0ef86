"""Run the ranks of several nodes, and go on with fewer nodes after one is lost (--min-nodes).

The launcher of the first node leads (`lt_train.launch.node_group`). If a node is lost, all nodes end their ranks, and the leader
waits --wait-for-nodes seconds for it. Then the largest usable number of nodes starts from the newest checkpoint, which the ranks
read in their new layout, as a run does that is resumed by hand with other nodes. The global batch and the order of its samples
stay. If a node comes later, the ranks end after their next checkpoint, and start again with it. The loss of the first node ends
the run, and the job's scheduler starts it again.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from lt_shared.console import BadConfig, ExitCode, Terminated, ToolError, Unavailable, note, warn
from lt_train.checkpoint import resume, starting_point
from lt_train.config import cluster
from lt_train.config.run_config import RunConfig
from lt_train.launch.node_group import Leader, Member
from lt_train.launch.rank_processes import RankKilled, Ranks
from lt_train.planner import memory_estimate, node_counts, search
from lt_train.process import restart_policy
from lt_train.process.ports import free_port
from lt_train.process.rank_environment import Node
from lt_train.process.restart_policy import NEXT_PHASE
from lt_train.train import crash_loop

POLL_SECONDS = 0.1
# Ranks whose connections were closed report that after four seconds. By then the node that they have lost is known to be lost.
CAUSE_SECONDS = 10.0
# Time for the launchers of other nodes to kill their ranks.
STOP_SECONDS = 60.0
ENDED = (ExitCode.OK, ExitCode.TRY_AGAIN, NEXT_PHASE)

Resolve = Callable[[int, int], RunConfig]
Prepare = Callable[[RunConfig, bool], RunConfig]


class NodesLost(Exception):
    """A node that takes part in the present attempt is lost."""


class OthersFailed(Exception):
    """Another node's ranks have failed with the exit code `code`, and that node has said why."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


class Stopped(Exception):
    """The leader ends the present attempt."""


@dataclasses.dataclass
class Nodes:
    """The nodes that may take part in a run. `node` is this node, and `config` the configuration on all nodes.

    `resolve` resolves the configuration on a number of nodes with a number of ranks. `prepare` checks the data and chooses the
    checkpoint to start from.
    """

    node: Node
    config: RunConfig
    resolve: Resolve
    prepare: Prepare

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
            raise BadConfig(f"the plan does not fit: {shortage.reason}", search.LESS_MEMORY)

    def rank_node(self, number: int, nodes: Sequence[int], port: int) -> Node:
        """Return the node with the `number` as the ranks see it in an attempt of `nodes`."""
        return dataclasses.replace(self.node, node_rank=nodes.index(number), nodes=len(nodes), master_port=port)


class LeadingRun:
    """The run on the first node, which decides which nodes take part in each attempt."""

    def __init__(self, nodes: Nodes):
        self._nodes = nodes
        self._faults = nodes.config.faults
        self._counts = nodes.usable_counts()

    def run(self, ranks: Ranks) -> int:
        """Run attempts until the run ends on all nodes. Return the exit code of the run.

        Raises Unavailable if too few nodes come, and RankKilled if a signal ended a rank and no restart is left.
        """
        node = self._nodes.node
        with Leader(node.master_address, node.master_port, node.nodes, self._nodes.settings) as group:
            try:
                code = self._run(ranks, group)
            except (ToolError, Terminated) as error:
                group.finish(error.exit_code)
                raise
            group.finish(code)
            return code

    def _run(self, ranks: Ranks, group: Leader) -> int:
        restarts_left = self._faults.max_restarts
        # At the start, some nodes may still load an image.
        wait_seconds = max(self._faults.timeout_seconds, self._faults.wait_for_nodes_seconds)
        while True:
            present = self._gather(ranks, group, wait_seconds)
            if ranks.signalled:
                return ExitCode.TRY_AGAIN
            wait_seconds = self._faults.wait_for_nodes_seconds
            try:
                code = self._attempt(ranks, group, present)
            except NodesLost:
                hosts = ", ".join(f"{number} ({host})" for number, host in sorted(group.lost.items()))
                note(f"node {hosts} of {self._nodes.node.nodes} is lost: waiting up to {wait_seconds:g} s for it")
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
            note(f"going on with {len(present)} of {all_nodes} node(s) from iteration {step}")
        port, attempts_before = free_port(), crash_loop.attempts(saving.directory)
        group.begin(present, port, step)
        code: int = ExitCode.OK
        try:
            local_node = self._nodes.rank_node(0, present, port)
            code = self._code_of_all(ranks, group, config, local_node)
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

    def _code_of_all(self, ranks: Ranks, group: Leader, config: RunConfig, local_node: Node) -> int:
        def watch() -> None:
            group.poll()
            if group.lost:
                raise NodesLost
            if failed := [code for code in group.endings.values() if code not in ENDED]:
                raise OthersFailed(failed[0])
            self._ask_for_more(ranks, group, local_node.nodes)

        code = ranks.run(config.to_json(), config.parallelism.world_size, True, local_node, watch)
        # A failure here may be the echo of a lost node. After a good end, the other nodes end at the same step.
        seconds = STOP_SECONDS if code in ENDED else CAUSE_SECONDS
        deadline = time.monotonic() + seconds
        while not group.is_complete and time.monotonic() < deadline:
            group.poll()
            if code not in ENDED:
                watch()
            time.sleep(POLL_SECONDS)
        if code == ExitCode.TRY_AGAIN and group.lost:
            raise NodesLost
        return max(code, *group.endings.values()) if group.endings and code in ENDED else code

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
    """The run on another node: start and end ranks as the first node says."""

    def __init__(self, nodes: Nodes):
        self._nodes = nodes
        self._messages: deque[dict[str, Any]] = deque()

    def run(self, ranks: Ranks) -> int:
        """Run attempts until the first node ends the run. Return the exit code of the run.

        A signal to this launcher ends this node's part of the run alone. Raises Unavailable if the first node is lost or does not
        answer, BadConfig if it refuses this node.
        """
        node, faults = self._nodes.node, self._nodes.config.faults
        address, seconds = (node.master_address, node.master_port), max(faults.timeout_seconds, faults.wait_for_nodes_seconds)
        with Member(*address, node.node_rank, self._nodes.settings, seconds) as group:
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
        numbers = begin["nodes"]
        config = self._nodes.config_on(len(numbers), False).at_step(begin["step"])
        local_node = self._nodes.rank_node(self._nodes.node.node_rank, numbers, begin["port"])

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
