"""tail-cause believes Slurm about a job whose log stops without a word, and the log where the log has a reason of its own."""

import json
from pathlib import Path

import pytest
from cause_table import STEPS

from lt_monitor.runs.faults.tail_cause import tail_cause

OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 22.19 GiB\n"
DONE = "***** train metrics *****\n"


def cause_with(tmp_path: Path, text: str, state: str, job: str = "77", **fields: str) -> tuple[str | None, str]:
    (tmp_path / "slurm-77.out").write_text(text)
    record = {"v": 1, "kind": "job", "run": f"job-{job}", "job": job, "state": state, "src": {"file": "squeue"}, **fields}
    other = {**record, "job": "78", "state": "NODE_FAIL", "log": "/fsx/slurm-78.out"}
    lines = [record, *([other] if "log" in fields else [])]
    (tmp_path / "jobs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    cause = tail_cause([str(tmp_path / "slurm-77.out"), str(tmp_path / "jobs.jsonl")])
    return cause.fault, cause.action.value


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ("TIMEOUT", "time-limit"),
        ("PREEMPTED", "preemption"),
        ("NODE_FAIL", "node-failure"),
        ("OUT_OF_MEMORY", "host-out-of-memory"),
        ("CANCELLED", "cancelled"),
        ("FAILED", "unknown"),
        ("RUNNING", None),
        ("PENDING", None),
        ("COMPLETED", None),
    ],
)
def test_a_log_that_stops_without_a_word(state: str, fault: str | None, tmp_path: Path) -> None:
    assert cause_with(tmp_path, STEPS, state)[0] == fault
    assert cause_with(tmp_path, STEPS, state, log="/fsx/slurm-77.out")[0] == fault


def test_a_root_cause_in_the_log_explains_more(tmp_path: Path) -> None:
    for state in ("TIMEOUT", "CANCELLED", "FAILED", "RUNNING"):
        assert cause_with(tmp_path, STEPS + OOM, state)[0] == "out-of-memory"
    killed = "srun: error: n1: task 0: Killed\n"
    assert cause_with(tmp_path, STEPS + killed, "OUT_OF_MEMORY")[0] == "host-out-of-memory"
    assert cause_with(tmp_path, STEPS + DONE, "TIMEOUT")[0] is None
