"""Gather the nodes' findings: every node sends its findings to the first node, which asks the node for its time.

A node sends a line of JSON to the run's rendezvous address, so that a network that separates the ranks is found before the run.
No torch is imported, so preflight takes a fraction of a second instead of several seconds.
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
from lt_train.process.rank_environment import LOOPBACK, Node, RankEnvironment, format_ranks

# Python's start from a shared filesystem can take a minute on many nodes.
WAIT_SECONDS = 120.0
ANSWER_SECONDS = 5.0
RETRY_SECONDS = 0.1
LONGEST_REPORT_BYTES = 2**20
LONGEST_SKEW_SECONDS = 1.0
QUESTION = b"time?\n"


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of process `number` on node `node`. Its clock is at least `ahead_seconds` ahead of the first process's clock."""

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


def plan_meeting(
    rank_env: RankEnvironment | None, node: Node | None, environment: Mapping[str, str] = os.environ
) -> Meeting | None:
    """Return the address where the processes exchange findings, or None for a process alone."""
    if rank_env is not None:
        # If torchrun shares its store with the ranks, torchrun itself listens on the rendezvous port.
        port = rank_env.master_port + (environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True")
        return Meeting(
            rank_env.rank, rank_env.rank // rank_env.local_world_size, rank_env.world_size, rank_env.master_address, port
        )
    if node is not None:
        return Meeting(node.node_rank, node.node_rank, node.nodes, node.master_address, node.master_port)
    return None


def gather_results(result: Result, meeting: Meeting, wait_seconds: float = WAIT_SECONDS) -> Result | None:
    """Gather the nodes' results in the first process; return None in the other processes.

    If a process cannot reach the first process, it warns and returns its own result.
    """
    report = Report(meeting.number, meeting.node, socket.gethostname(), result)
    deadline = time.monotonic() + wait_seconds
    if meeting.number:
        try:
            _send_report(report, meeting, deadline)
        except OSError as problem:
            reason = problem.strerror or problem
            warn(f"process {meeting.number} cannot send its findings to {meeting.address}:{meeting.port}: {reason}")
            return merge_reports([report])
        return None
    try:
        reports = [report, *_receive_reports(meeting, deadline)]
    except OSError as problem:
        cannot_listen = error(
            f"cannot listen there: {problem.strerror}", f"{meeting.address}:{meeting.port}", "set MASTER_PORT to a free port"
        )
        return merge_reports([report]).with_findings("nodes.gather", [cannot_listen])
    merged = merge_reports(reports)
    missing = sorted(set(range(meeting.count)) - {report.number for report in reports})
    return merged.with_findings("nodes.gather", [_missing_finding(missing, meeting, wait_seconds)] if missing else [])


def _missing_finding(missing: list[int], meeting: Meeting, wait_seconds: float) -> Finding:
    return error(
        f"of {meeting.count} processes, number {format_ranks(missing)} did not report within {wait_seconds:g} s",
        f"{meeting.address}:{meeting.port}",
        "see what they say (srun -l), and whether their nodes reach this port",
    )


def _send_report(report: Report, meeting: Meeting, deadline: float) -> None:
    """Send `report` to the first process, and then the time. Raises OSError if the first process is not reached in time."""
    text = {"number": report.number, "node": report.node, "host": report.host, "result": report.result.record()}
    while True:
        try:
            with socket.create_connection((meeting.address, meeting.port), timeout=ANSWER_SECONDS) as connection:
                connection.settimeout(max(ANSWER_SECONDS, deadline - time.monotonic()))
                connection.sendall(json.dumps(text).encode() + b"\n")
                with connection.makefile("rb") as answers:
                    # Another listener on this port, such as a measurement's store that has not closed yet, does not ask.
                    if answers.readline(len(QUESTION)) != QUESTION:
                        raise ConnectionResetError("nobody asks there")
                connection.sendall(f"{time.time()}\n".encode())
                return
        except OSError as problem:
            if isinstance(problem, socket.gaierror) or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)


def _receive_reports(meeting: Meeting, deadline: float) -> list[Report]:
    """Return the reports of the other processes that arrive in time. Raises OSError if the port is taken."""
    reports: dict[int, Report] = {}
    with _listen(meeting) as listener:
        while len(reports) < meeting.count - 1 and (remaining_seconds := deadline - time.monotonic()) > 0:
            listener.settimeout(remaining_seconds)
            # A stranger's connection sends no valid report; it is dropped, and the next process can report.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(ANSWER_SECONDS)
                    report = _read_report(connection)
                    reports[report.number] = report
    return [reports[number] for number in sorted(reports)]


def _listen(meeting: Meeting) -> socket.socket:
    if meeting.address == LOOPBACK:
        return socket.create_server((LOOPBACK, meeting.port), backlog=meeting.count)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", meeting.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=meeting.count)
    return socket.create_server(("", meeting.port), backlog=meeting.count)


def _read_report(connection: socket.socket) -> Report:
    with connection.makefile("rb") as lines:
        record = json.loads(lines.readline(LONGEST_REPORT_BYTES))
        begin = time.time()
        connection.sendall(QUESTION)
        clock = float(lines.readline(64))
        end = time.time()
    # The other clock is read between question and answer. The offset is uncertain by half that time, 1 ms or less in a cluster.
    offset, uncertainty = clock - (begin + end) / 2, (end - begin) / 2
    ahead = max(0.0, abs(offset) - uncertainty) * (1 if offset > 0 else -1)
    result = Result.from_record(record["result"])
    return Report(int(record["number"]), int(record["node"]), str(record["host"]), result, ahead)


def merge_reports(reports: list[Report]) -> Result:
    """Merge the results of several processes: every finding once, with its nodes, and findings about wrong clocks."""
    names = _names(reports)
    nodes: dict[Finding, dict[str, None]] = {}
    unchecked: dict[str, dict[str, dict[str, None]]] = {}
    for report in reports:
        for finding in report.result.findings:
            nodes.setdefault(dataclasses.replace(finding, nodes=()), {})[names[report.node]] = None
        for check, reason in report.result.not_checked.items():
            unchecked.setdefault(check, {}).setdefault(reason, {})[names[report.node]] = None
    all_nodes = tuple(names.values())
    not_checked = {
        check: "; ".join(f"{reason} ({', '.join(who)})" if len(who) < len(names) else reason for reason, who in reasons.items())
        for check, reasons in unchecked.items()
    }
    findings = [dataclasses.replace(finding, nodes=tuple(who)) for finding, who in nodes.items()]
    checked = dict.fromkeys(check for report in reports for check in report.result.checked if check not in unchecked)
    return Result((*findings, *_compare_clocks(reports, names)), tuple(checked), not_checked, all_nodes)


def _names(reports: list[Report]) -> dict[int, str]:
    """Map node numbers to host names. If two nodes have the same host name, all names get the node number."""
    hosts = {report.node: report.host for report in sorted(reports, key=lambda report: report.node)}
    if len(set(hosts.values())) == len(hosts):
        return hosts
    return {node: f"node {node} ({host})" for node, host in hosts.items()}


def _compare_clocks(reports: list[Report], names: dict[int, str]) -> Iterable[Finding]:
    """Compare each clock with the median, because the first node's clock may be wrong."""
    ahead: dict[int, Any] = {}
    for report in reports:
        ahead.setdefault(report.node, report.ahead_seconds)
    middle = statistics.median_low(ahead.values())
    reference = next(names[node] for node, seconds in ahead.items() if seconds == middle)
    for node, seconds in ahead.items():
        if abs(seconds - middle) > LONGEST_SKEW_SECONDS:
            side = "ahead of" if seconds > middle else "behind"
            finding = warning(f"{abs(seconds - middle):.1f} s {side} {reference}'s", "clock", "start chronyd on the nodes")
            yield dataclasses.replace(finding, nodes=(names[node],))
