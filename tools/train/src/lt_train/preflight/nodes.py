"""One report of all nodes: each node sends its findings to the first node, which asks each node for its time.

A line of JSON goes over a socket to the rendezvous of the run, so a network that would keep the ranks apart is found before the
run. No torch is imported, so preflight takes a fraction of a second instead of several seconds.

A clock is read between a question and its answer. Half the time between question and answer is the error of the offset, 1 ms or
less within a cluster.
"""

import contextlib
import dataclasses
import json
import os
import socket
import statistics
import time
from collections.abc import Iterable, Mapping
from typing import Any

from lt_shared.console import warn
from lt_train.preflight.check_interface import Finding, error, warning
from lt_train.preflight.check_runner import Result
from lt_train.process.rank_environment import LOOPBACK, Node, RankEnvironment, shown

# Python's start from a shared filesystem can take a minute on many nodes.
WAIT_SECONDS = 120.0
ANSWER_SECONDS = 5.0
RETRY_SECONDS = 0.1
LONGEST_REPORT_BYTES = 2**20
LONGEST_SKEW_SECONDS = 1.0
QUESTION = b"time?\n"


@dataclasses.dataclass(frozen=True)
class Report:
    """What process `number` on node `node` found. Its clock is `ahead_seconds` ahead of the first's, beyond all doubt."""

    number: int
    node: int
    host: str
    result: Result
    ahead_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Meeting:
    """The meeting of `count` processes; this process has `number` and runs on node `node`."""

    number: int
    node: int
    count: int
    address: str
    port: int


def meeting(rank_env: RankEnvironment | None, node: Node | None, environment: Mapping[str, str] = os.environ) -> Meeting | None:
    """None for a process alone."""
    if rank_env is not None:
        # torchrun listens on the port of the rendezvous itself when it lends its store to the ranks.
        port = rank_env.master_port + (environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True")
        return Meeting(
            rank_env.rank, rank_env.rank // rank_env.local_world_size, rank_env.world_size, rank_env.master_address, port
        )
    if node is not None:
        return Meeting(node.node_rank, node.node_rank, node.nodes, node.master_address, node.master_port)
    return None


def gather(result: Result, at: Meeting, wait_seconds: float = WAIT_SECONDS) -> Result | None:
    """Gather the nodes' results in the first process; return None in the other processes.

    A process that does not reach the first one reports that, and returns its own result.
    """
    own = Report(at.number, at.node, socket.gethostname(), result)
    deadline = time.monotonic() + wait_seconds
    if at.number:
        try:
            _send(own, at, deadline)
        except OSError as problem:
            warn(f"process {at.number} cannot send its findings to {at.address}:{at.port}: {problem.strerror or problem}")
            return merge([own])
        return None
    try:
        reports = [own, *_receive(at, deadline)]
    except OSError as problem:
        taken = error(f"cannot listen there: {problem.strerror}", f"{at.address}:{at.port}", "set MASTER_PORT to a free port")
        return merge([own]).with_findings("nodes.gather", [taken])
    merged = merge(reports)
    missing = sorted(set(range(at.count)) - {report.number for report in reports})
    return merged.with_findings("nodes.gather", [_of_missing(missing, at, wait_seconds)] if missing else [])


def _of_missing(missing: list[int], at: Meeting, wait_seconds: float) -> Finding:
    return error(
        f"of {at.count} processes, number {shown(missing)} did not report within {wait_seconds:g} s",
        f"{at.address}:{at.port}",
        "see what they say (srun -l), and whether their nodes reach this port",
    )


def _send(own: Report, at: Meeting, deadline: float) -> None:
    """Raises OSError when the first is not reached in time."""
    text = {"number": own.number, "node": own.node, "host": own.host, "result": own.result.record()}
    while True:
        try:
            with socket.create_connection((at.address, at.port), timeout=ANSWER_SECONDS) as connection:
                connection.settimeout(max(ANSWER_SECONDS, deadline - time.monotonic()))
                connection.sendall(json.dumps(text).encode() + b"\n")
                with connection.makefile("rb") as answers:
                    # Whoever listened there before, such as the store of a measurement, does not ask.
                    if answers.readline(len(QUESTION)) != QUESTION:
                        raise ConnectionResetError("nobody asks there")
                connection.sendall(f"{time.time()}\n".encode())
                return
        except OSError as problem:
            if isinstance(problem, socket.gaierror) or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)


def _receive(at: Meeting, deadline: float) -> list[Report]:
    """The reports of the others, as many as come in time. Raises OSError when the port cannot be had."""
    reports: dict[int, Report] = {}
    with _listen(at) as listener:
        while len(reports) < at.count - 1 and (left := deadline - time.monotonic()) > 0:
            listener.settimeout(left)
            # A stranger's connection is no report, and keeps nobody from reporting.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(ANSWER_SECONDS)
                    report = _read(connection)
                    reports[report.number] = report
    return [reports[number] for number in sorted(reports)]


def _listen(at: Meeting) -> socket.socket:
    if at.address == LOOPBACK:
        return socket.create_server((LOOPBACK, at.port), backlog=at.count)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", at.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=at.count)
    return socket.create_server(("", at.port), backlog=at.count)


def _read(connection: socket.socket) -> Report:
    with connection.makefile("rb") as lines:
        said = json.loads(lines.readline(LONGEST_REPORT_BYTES))
        begin = time.time()
        connection.sendall(QUESTION)
        clock = float(lines.readline(64))
        end = time.time()
    offset, doubt = clock - (begin + end) / 2, (end - begin) / 2
    ahead = max(0.0, abs(offset) - doubt) * (1 if offset > 0 else -1)
    return Report(int(said["number"]), int(said["node"]), str(said["host"]), Result.of_record(said["result"]), ahead)


def merge(reports: list[Report]) -> Result:
    """What several processes found, each finding once with the nodes that have it, and whose clock is wrong."""
    names = _names(reports)
    nodes: dict[Finding, dict[str, None]] = {}
    unchecked: dict[str, dict[str, dict[str, None]]] = {}
    for report in reports:
        for finding in report.result.findings:
            nodes.setdefault(dataclasses.replace(finding, nodes=()), {})[names[report.node]] = None
        for check, reason in report.result.not_checked.items():
            unchecked.setdefault(check, {}).setdefault(reason, {})[names[report.node]] = None
    everywhere = tuple(names.values())
    not_checked = {
        check: "; ".join(f"{reason} ({', '.join(who)})" if len(who) < len(names) else reason for reason, who in reasons.items())
        for check, reasons in unchecked.items()
    }
    found = [dataclasses.replace(finding, nodes=tuple(who)) for finding, who in nodes.items()]
    checked = dict.fromkeys(check for report in reports for check in report.result.checked if check not in unchecked)
    return Result((*found, *_clocks(reports, names)), tuple(checked), not_checked, everywhere)


def _names(reports: list[Report]) -> dict[int, str]:
    """Host names of the nodes, with their numbers when two have the same."""
    hosts = {report.node: report.host for report in sorted(reports, key=lambda report: report.node)}
    if len(set(hosts.values())) == len(hosts):
        return hosts
    return {node: f"node {node} ({host})" for node, host in hosts.items()}


def _clocks(reports: list[Report], names: dict[int, str]) -> Iterable[Finding]:
    """Compare each clock with the median, because the first node's clock may be wrong."""
    ahead: dict[int, Any] = {}
    for report in reports:
        ahead.setdefault(report.node, report.ahead_seconds)
    middle = statistics.median_low(ahead.values())
    reference = next(names[node] for node, seconds in ahead.items() if seconds == middle)
    for node, seconds in ahead.items():
        if abs(seconds - middle) > LONGEST_SKEW_SECONDS:
            side = "ahead of" if seconds > middle else "behind"
            found = warning(f"{abs(seconds - middle):.1f} s {side} {reference}'s", "clock", "start chronyd on the nodes")
            yield dataclasses.replace(found, nodes=(names[node],))
