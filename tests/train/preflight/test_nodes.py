"""One report of several nodes: who has which finding, whose clock is wrong, who does not answer."""

import dataclasses
import json
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from running import command, environment
from situations import MODEL

from lt_train.preflight import nodes
from lt_train.preflight.check_interface import error, warning
from lt_train.preflight.check_runner import Result
from lt_train.preflight.nodes import Meeting, Report
from lt_train.process.ports import free_port
from lt_train.process.rank_environment import Node, RankEnvironment

MISSING, SLOW = error("is not there", "/dev/shm", "mount it"), warning("the name is deprecated", "OLD", "set NEW")
RESULTS = [
    Result((SLOW,), ("a.one", "a.two"), {"a.three": "not here"}),
    Result((SLOW, MISSING), ("a.one",), {"a.two": "no program", "a.three": "not here"}),
]


def reports(*ahead: float) -> list[Report]:
    return [Report(number, number, f"n{number + 1}", Result((), (), {}), seconds) for number, seconds in enumerate(ahead)]


def meetings(count: int) -> list[Meeting]:
    port = free_port()
    return [Meeting(number, number, count, "127.0.0.1", port) for number in range(count)]


def test_a_finding_is_told_once_with_its_nodes() -> None:
    merged = nodes.merge_reports([Report(number, number, f"n{number + 1}", result) for number, result in enumerate(RESULTS)])
    assert [(finding.what, finding.nodes) for finding in merged.findings] == [
        (SLOW.what, ("n1", "n2")),
        (MISSING.what, ("n2",)),
    ]
    assert merged.checked == ("a.one",)
    assert merged.not_checked == {"a.three": "not here", "a.two": "no program (n2)"}
    assert str(merged.findings[1]) == "n2: error: /dev/shm: is not there; mount it"
    assert [finding["nodes"] for finding in merged.record()["findings"]] == [["n1", "n2"], ["n2"]]


def test_ranks_of_a_node_are_one_node() -> None:
    ranks = [Report(rank, rank // 2, f"n{rank // 2 + 1}", RESULTS[0]) for rank in range(4)]
    merged = nodes.merge_reports(ranks)
    assert (merged.nodes, merged.findings[0].nodes) == (("n1", "n2"), ("n1", "n2"))


def test_nodes_of_one_name_are_told_by_their_numbers() -> None:
    same = [dataclasses.replace(report, host="vm") for report in reports(0, 0)]
    assert nodes.merge_reports(same).nodes == ("node 0 (vm)", "node 1 (vm)")


@pytest.mark.parametrize(
    ("ahead", "wrong"),
    [
        ((0, 0.9, -0.9), []),
        ((0, 7.0), [("n2", "7.0 s ahead of n1's")]),
        ((0, 0.1, -3.0, 0.2), [("n3", "3.0 s behind n1's")]),
        # The first is wrong, and so all others seem to be.
        ((0, 5.0, 5.0, 5.5), [("n1", "5.0 s behind n2's")]),
    ],
)
def test_the_wrong_clock_is_named(ahead: tuple[float, ...], wrong: list[tuple[str, str]]) -> None:
    found = nodes.merge_reports(reports(*ahead)).findings
    assert [(*finding.nodes, finding.what) for finding in found] == wrong


def gathered(at: list[Meeting], results: list[Result], wait_seconds: float = 20.0) -> list[Result | None]:
    """What each of the processes gets."""
    got: list[Result | None] = [None] * len(at)

    def take_part(index: int) -> None:
        got[index] = nodes.gather_results(results[index], at[index], wait_seconds)

    threads = [threading.Thread(target=take_part, args=(index,)) for index in range(len(at))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return got


def test_the_first_gets_all() -> None:
    many = meetings(9)
    first, *others = gathered(many, [Result((error(f"mistake {number}", "x", "y"),), (), {}) for number in range(9)])
    assert first is not None
    assert [finding.what for finding in first.findings] == [f"mistake {number}" for number in range(9)]
    assert others == [None] * 8


def test_a_stranger_on_the_port_keeps_nobody_from_reporting() -> None:
    at = meetings(2)
    done = threading.Event()

    def disturb() -> None:
        while not done.wait(0.02):
            try:
                with socket.create_connection((at[0].address, at[0].port), timeout=1) as connection:
                    connection.sendall(b'{"number": "GET / HTTP/1.1"}\n')
            except OSError:
                pass

    stranger = threading.Thread(target=disturb)
    stranger.start()
    first, other = gathered(at, RESULTS)
    done.set()
    stranger.join()
    assert first is not None
    assert len(first.nodes) == 2
    assert other is None


def test_who_does_not_report_is_named() -> None:
    (first,) = gathered(meetings(4)[:1], RESULTS[:1], wait_seconds=0.3)
    assert first is not None
    assert "of 4 processes, number 1, 2, 3 did not report within 0.3 s" in first.findings[-1].what


def test_who_does_not_reach_the_first_has_its_own_report(capsys: pytest.CaptureFixture[str]) -> None:
    (own,) = gathered(meetings(2)[1:], RESULTS[1:], wait_seconds=0.3)
    assert own is not None
    assert [finding.what for finding in own.findings] == [SLOW.what, MISSING.what]
    assert "process 1 cannot send its findings to 127.0.0.1:" in capsys.readouterr().err


def test_a_port_that_is_taken() -> None:
    (first, _) = at = meetings(2)
    with socket.create_server((first.address, first.port)):
        found = nodes.gather_results(RESULTS[0], at[0])
    assert found is not None
    assert "cannot listen there" in found.errors[-1].what


def test_where_processes_meet() -> None:
    rank = RankEnvironment(9, 1, 8, 16, "n1", 20000, "srun")
    assert nodes.plan_meeting(rank, None, {}) == Meeting(9, 1, 16, "n1", 20000)
    assert nodes.plan_meeting(rank, None, {"TORCHELASTIC_USE_AGENT_STORE": "True"}) == Meeting(9, 1, 16, "n1", 20001)
    assert nodes.plan_meeting(None, Node(1, 2, None, "n1", 20000, "srun"), {}) == Meeting(1, 1, 2, "n1", 20000)
    assert nodes.plan_meeting(None, None, {}) is None


def test_two_nodes_of_a_step(tmp_path: Path) -> None:
    """Both are this machine. The second has a variable that the first has not."""
    shared = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    shared |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_LOCALID": "0", "MASTER_PORT": str(free_port())}
    arguments = command("preflight", "--json", *MODEL, "--save", str(tmp_path / "run"))
    started = []
    for index, more in enumerate(({}, {"NCCL_SOCKET_IFNAME": "none0"})):
        variables = environment() | shared | {"SLURM_PROCID": str(index), "SLURM_NODEID": str(index)} | more
        started.append(subprocess.Popen(arguments, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    (out, said), (nothing, silence) = (process.communicate(timeout=120) for process in started)
    assert [process.returncode for process in started] == [78, 0], said
    assert (nothing, silence) == ("", "")
    record = json.loads(out)
    host = socket.gethostname()
    (found,) = [finding for finding in record["findings"] if "none0" in finding["what"]]
    assert found["nodes"] == [f"node 1 ({host})"]
    assert len(record["nodes"]) == 2
