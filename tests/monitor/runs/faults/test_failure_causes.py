"""What stopped a run: causes before cascades."""

from typing import Any

import pytest

from lt_monitor.runs.faults.advice import advice
from lt_monitor.runs.faults.failure_causes import failure_findings, root_cause, suspect_ranks
from lt_monitor.runs.run_state import RunState


def fault(name: str, cause: str, message: str = "a line", severity: str = "critical", **more: Any) -> dict[str, Any]:
    place = {"file": "r.log", "offset": 7}
    return {"kind": "fault", "fault": name, "cause": cause, "severity": severity, "message": message, "src": place, **more}


def state(*faults: dict[str, Any], **more: Any) -> RunState:
    run = RunState("r", faults=list(faults), **more)
    run.attempt.last_step = 120
    return run


def test_the_root_is_the_headline_and_cascades_are_counted() -> None:
    timeouts = [fault("nccl-timeout", "cascade", rank=rank) for rank in range(8) if rank != 3]
    root = fault("out-of-memory", "root", "torch.OutOfMemoryError", rank=3)
    (found,) = failure_findings(state(*timeouts[:4], root, *timeouts[4:], fault("exit", "cascade", exit_code=1)))
    assert found.rule == "out-of-memory"
    assert found.message == "rank 3: torch.OutOfMemoryError; then nccl-timeout x7, exit"
    assert found.fields["followed_by"] == {"nccl-timeout": 7, "exit": 1}
    assert (found.fields["rank"], found.fields["step"]) == (3, 120)


def test_each_kind_of_root_is_one_finding() -> None:
    xids = [fault("xid", "root", f"Xid {number}", xid=number, node=node) for number in (79, 48) for node in ("n1", "n2")]
    found = failure_findings(state(*xids, fault("killed", "cascade")))
    assert [one.fields["xid"] for one in found] == [79, 48]
    assert found[0].message == "nodes n1, n2: Xid 79; then killed" or found[0].message == "node n1, n2: Xid 79; then killed"
    assert len({one.key for one in found}) == 2


def test_without_a_root_the_time_out_names_the_suspect() -> None:
    timeouts = [fault("nccl-timeout", "cascade", rank=rank, last_completed=1579 if rank == 5 else 1580) for rank in range(8)]
    (found,) = failure_findings(state(fault("exit", "cascade"), *timeouts))
    assert found.rule == "nccl-timeout"
    assert found.message.startswith("first suspect rank 5: last completed collective 1579, others 1580")
    assert found.fields["suspect_ranks"] == [5]


def test_a_rank_that_is_silent_is_the_suspect() -> None:
    timeouts = [fault("nccl-timeout", "cascade", rank=rank, last_completed=9) for rank in range(8) if rank != 6]
    (found,) = failure_findings(state(*timeouts, arguments={"world_size": 8}))
    assert found.fields["suspect_ranks"] == [6]
    assert "all others report the time-out" in found.message


@pytest.mark.parametrize(
    ("ranks", "world_size"),
    [({0: 5, 1: 5}, None), ({0: 5, 1: 5}, 2), ({0: 5}, 8), ({}, 8), ({0: None}, None), ({0: 5, 1: 5, 2: 5}, 1 << 30)],
)
def test_no_suspect_where_nothing_tells(ranks: dict[int, int | None], world_size: int | None) -> None:
    timeouts = [fault("nccl-timeout", "cascade", rank=rank, last_completed=last) for rank, last in ranks.items()]
    assert suspect_ranks(timeouts, world_size) == ([], "")


def test_the_collective_that_timed_out_tells_where_nothing_else_does() -> None:
    timeouts = [fault("nccl-timeout", "cascade", rank=rank, sequence=12 if rank == 1 else 13) for rank in range(4)]
    assert suspect_ranks(timeouts, None)[0] == [1]


def test_unknown_comes_before_cascades() -> None:
    (found,) = failure_findings(state(fault("exit", "cascade"), fault("traceback", "unknown", "ValueError: bad")))
    assert (found.rule, found.message) == ("traceback", "ValueError: bad; then exit")


def test_roots_come_before_what_may_be_one() -> None:
    (found,) = failure_findings(state(fault("traceback", "unknown", "ValueError"), fault("out-of-memory", "root", "OOM")))
    assert (found.rule, found.message) == ("out-of-memory", "OOM; then traceback")


def test_the_same_failure_has_the_same_key_in_the_next_pass() -> None:
    run = state(fault("nccl-timeout", "cascade", rank=1))
    before = failure_findings(run)[0].key
    run.faults.append(fault("nccl-timeout", "cascade", rank=2))
    assert failure_findings(run)[0].key == before
    run.attempt.last_step = 121
    assert failure_findings(run)[0].key != before


def test_lines_of_one_rank_tell_together() -> None:
    lines = [fault("nccl-timeout", "cascade", rank=rank, sequence=12) for rank in range(2)]
    lines += [fault("nccl-timeout", "cascade", rank=rank, last_completed=11 - rank) for rank in range(2)]
    lines.append(fault("nccl-timeout", "cascade", rank=0, sequence=12))
    (found,) = failure_findings(state(*lines))
    assert (found.fields["suspect_ranks"], found.fields["count"]) == ([1], 2)


def test_a_job_that_was_cancelled_because_it_hung() -> None:
    timeouts = [fault("nccl-timeout", "cascade", rank=rank, last_completed=9 - rank) for rank in range(2)]
    cancelled = fault("time-limit", "root", severity="warning")
    assert [one.rule for one in failure_findings(state(*timeouts, cancelled))] == ["nccl-timeout", "time-limit"]
    assert [one.rule for one in failure_findings(state(cancelled, *timeouts))] == ["time-limit"]


def test_many_ranks_are_named_in_spans() -> None:
    faults = [fault("traceback", "root", rank=rank) for rank in (0, 1, 2, 3, 9, *range(20, 60, 2))]
    (found,) = failure_findings(state(*faults))
    assert found.message.startswith("ranks 0-3, 9, 20, 22, 24, 26, 28, 30, ...: ")


def test_no_faults_no_findings() -> None:
    assert failure_findings(state()) == []


@pytest.mark.parametrize(
    ("faults", "cause"),
    [
        ([("traceback", "root"), ("node-failure", "root")], "node-failure"),
        ([("nccl-timeout", "cascade"), ("host-out-of-memory", "root")], "host-out-of-memory"),
        ([("cuda-error", "root"), ("xid", "root")], "xid"),
        ([("cuda-error", "root"), ("xid", "unknown")], "cuda-error"),
        ([("traceback", "cascade"), ("nccl-error", "cascade")], "nccl-error"),
        ([("traceback", "cascade"), ("nccl-timeout", "cascade")], "nccl-timeout"),
        # A process that its watchdog has ended, and one whose end the others waited for.
        ([("nccl-timeout", "cascade"), ("killed", "unknown")], "nccl-timeout"),
        ([("killed", "unknown"), ("nccl-timeout", "cascade")], "killed"),
        ([("preemption", "root"), ("traceback", "root")], "preemption"),
        ([("traceback", "root"), ("preemption", "root")], "traceback"),
        ([("out-of-memory", "root"), ("time-limit", "root")], "out-of-memory"),
        ([("exit", "cascade"), ("rendezvous", "cascade")], "rendezvous"),
    ],
)
def test_what_explains_the_others(faults: list[tuple[str, str]], cause: str) -> None:
    records = [fault(name, why) for name, why in faults]
    chosen = root_cause(records)
    assert chosen is not None and chosen["fault"] == cause
    assert failure_findings(state(*records))[0].rule == cause
    assert failure_findings(state(*records))[0].fields["advice"] == advice(chosen).text


def test_a_warning_of_nccl_explains_only_an_exit_code() -> None:
    warning = fault("nccl-error", "unknown", severity="warning")
    for name, expected in (("exit", "nccl-error"), ("nccl-timeout", "nccl-timeout"), ("rendezvous", "rendezvous")):
        chosen = root_cause([warning, fault(name, "cascade")])
        assert chosen is not None and chosen["fault"] == expected
