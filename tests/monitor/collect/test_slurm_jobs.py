"""Answers of squeue, sacct and scontrol, old and new. A real Slurm answers in tests/cluster."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.collect import slurm_jobs
from lt_monitor.events import records

START = 1795305881
OLD: dict[str, Any] = {
    "job_id": 76,
    "array_job_id": 0,
    "array_task_id": None,
    "job_state": "RUNNING",
    "name": "gpt",
    "user_name": "ann",
    "partition": "p5",
    "state_reason": "None",
    "nodes": "n[1-2]",
    "node_count": 2,
    "restart_cnt": 1,
    "submit_time": START - 100,
    "start_time": START,
    "end_time": START + 600,
    "exit_code": 0,
    "tres_alloc_str": "cpu=192,mem=2T,node=2,billing=192,gres/gpu=16,gres/gpu:h100=16",
    "standard_output": "logs/%x_%j.out",
    "current_working_directory": "/fsx/ann",
}


def number(value: int, infinite: bool = False) -> dict[str, Any]:
    return {"set": True, "infinite": infinite, "number": value}


NEW = OLD | {
    "array_job_id": number(0),
    "array_task_id": {"set": False, "infinite": False, "number": 0},
    "job_state": ["RUNNING"],
    "node_count": number(2),
    "submit_time": number(START - 100),
    "start_time": number(START),
    "end_time": number(START + 600),
    "exit_code": {"status": ["SUCCESS"], "return_code": number(0), "signal": {"id": {"set": False}, "name": ""}},
}
NEWEST = NEW | {"stdout_expanded": "/fsx/ann/logs/gpt_76.out", "standard_output": "logs/%x_%j.out"}
RUNNING = {
    "kind": "job",
    "run": "/fsx/ann/logs/gpt_76",
    "job": "76",
    "state": "RUNNING",
    "name": "gpt",
    "user": "ann",
    "partition": "p5",
    "nodes": "n[1-2]",
    "node_count": 2,
    "gpus": 16,
    "restarts": 1,
    "submit_time": datetime.datetime.fromtimestamp(START - 100).astimezone().isoformat(),
    "start_time": datetime.datetime.fromtimestamp(START).astimezone().isoformat(),
    "log": "/fsx/ann/logs/gpt_76.out",
}


def parsed(*jobs: dict[str, Any]) -> list[dict[str, Any]]:
    found = slurm_jobs.parse(json.dumps({"jobs": jobs}), "-")
    assert all(records.problem(record) is None for record in found)
    return [{key: value for key, value in record.items() if key not in ("v", "time", "src")} for record in found]


@pytest.mark.parametrize("job", [OLD, NEW, NEWEST], ids=["22.05", "23.11", "25.05"])
def test_a_running_job_in_every_shape(job: dict[str, Any]) -> None:
    assert parsed(job) == [RUNNING]


def test_the_end_of_a_job() -> None:
    (record,) = parsed(OLD | {"job_state": "FAILED", "exit_code": 768, "state_reason": "NonZeroExitCode"})
    assert (record["exit_code"], record["reason"]) == (3, "NonZeroExitCode")
    assert record["end_time"] == datetime.datetime.fromtimestamp(START + 600).astimezone().isoformat()
    (record,) = parsed(NEW | {"job_state": ["FAILED"], "exit_code": {"return_code": number(1), "signal": {"id": number(9)}}})
    assert (record["exit_code"], record["signal"]) == (0, 9)


def test_tasks_of_an_array_have_their_own_logs() -> None:
    task = {"job_id": 90, "array_job_id": 88, "array_task_id": 3}
    (record,) = parsed(OLD | task | {"standard_output": "%A/%4a-%x-%%.out"})
    assert (record["job"], record["log"]) == ("88_3", "/fsx/ann/88/0003-gpt-%.out")
    (record,) = parsed(OLD | task | {"standard_output": ""})
    assert record["log"] == "/fsx/ann/slurm-88_3.out"
    (record,) = parsed(OLD | {"standard_output": ""})
    assert record["log"] == "/fsx/ann/slurm-76.out"


def test_gpus_of_one_type() -> None:
    (record,) = parsed(OLD | {"tres_alloc_str": "cpu=8,gres/gpu:a100=4"})
    assert record["gpus"] == 4


def test_sacct_json() -> None:
    job = {
        "job_id": 77,
        "array": {"job_id": 0, "task_id": {"set": False}},
        "name": "gpt",
        "state": {"current": ["NODE_FAIL"], "reason": "None"},
        "time": {"start": START, "end": START + 50, "submission": START - 9},
        "exit_code": {"status": ["ERROR"], "return_code": number(0), "signal": {"id": number(0)}},
        "nodes": "n[1-2]",
        "user": "ann",
        "tres": {"allocated": [{"type": "cpu", "name": "", "count": 96}, {"type": "gres", "name": "gpu", "count": 8}]},
        "allocation_nodes": 2,
    }
    (record,) = parsed(job)
    assert (record["state"], record["gpus"], record["node_count"], record["user"]) == ("NODE_FAIL", 8, 2, "ann")
    assert record["run"] == "job-77"


def test_sacct_columns() -> None:
    answer = (
        f"{slurm_jobs.SACCT_FIELDS.replace(',', '|')}\n"
        "77|77|gpt|CANCELLED by 1000|0:15|2026-11-21T10:00:00|2026-11-21T10:01:00|2026-11-21T12:00:00|2|n[1-2]|ann|p5|/fsx/ann\n"
        "78|75_3|gpt|PENDING|0:0|2026-11-21T10:00:00|Unknown|Unknown|2|None assigned|ann|p5|/fsx/ann\n"
    )
    jobs = slurm_jobs.parse(answer, "-")
    assert [(record["job"], record["state"]) for record in jobs] == [("77", "CANCELLED"), ("75_3", "PENDING")]
    assert (jobs[0]["exit_code"], jobs[0]["signal"]) == (0, 15)
    assert jobs[0]["start_time"].startswith("2026-11-21T10:01:00")
    assert "start_time" not in jobs[1]


SCONTROL = (
    "JobId=90 ArrayJobId=88 ArrayTaskId=3 JobName=my gpt = big UserId=ann(1000) GroupId=ann(1000) JobState=FAILED"
    " Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=2 ExitCode=3:0 SubmitTime=2026-11-21T10:00:00"
    " StartTime=2026-11-21T10:01:00 EndTime=2026-11-21T12:00:00 Partition=p5 NodeList=n[1-2] NumNodes=2"
    " TRES=cpu=192,node=2,gres/gpu=16 Command=/fsx/ann/job.sh WorkDir=/fsx/ann StdErr=/fsx/ann/e.out"
    " StdOut=/fsx/ann/with space.out Power= \n"
)


@pytest.mark.parametrize("text", [SCONTROL, SCONTROL.replace(" Reason", "\n   Reason").replace(" Partition", "\n   Partition")])
def test_scontrol(text: str) -> None:
    first, second = slurm_jobs.parse(text + "\n" + text.replace("JobId=90", "JobId=91"), "-")
    assert (first["job"], first["name"], first["state"], first["restarts"]) == ("88_3", "my gpt = big", "FAILED", 2)
    assert (first["gpus"], first["user"], first["exit_code"]) == (16, "ann", 3)
    assert first["log"] == "/fsx/ann/with space.out"
    assert second["job"] == "88_3"


def install(folder: Path, **programs: str) -> str:
    folder.mkdir(exist_ok=True)
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:/bin:/usr/bin" if "squeue" in programs else str(folder)


def test_old_squeue_without_json(tool: Any, tmp_path: Path) -> None:
    script = """case "$1" in
--json) echo "squeue: unrecognized option '--json'" >&2; exit 1;;
*) echo '88|3|RUNNING|2026-11-21T10:00:00|2026-11-21T10:01:00|N/A|2|n[1-2]|ann|p5|None|/fsx/ann|a|name'
   echo '76|N/A|PENDING|2026-11-21T10:00:00|N/A|N/A|2||ann|p5|Priority|/fsx/ann|gpt';;
esac"""
    result = tool("slurm", PATH=install(tmp_path / "bin", squeue=script))
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert (first["job"], first["name"], first["log"]) == ("88_3", "a|name", "/fsx/ann/slurm-88_3.out")
    assert (second["job"], second["state"], second["reason"]) == ("76", "PENDING", "Priority")


def test_jobs_that_squeue_forgot_are_asked_for(tool: Any, tmp_path: Path) -> None:
    squeue = f"cat <<'END'\n{json.dumps({'jobs': [OLD]})}\nEND"
    sacct = "echo 'Slurm accounting storage is disabled' >&2; exit 1"
    scontrol = f"""case "$4" in 90) cat <<'END'\n{SCONTROL}END\n;; *) echo 'Invalid job id specified' >&2; exit 1;; esac"""
    path = install(tmp_path / "bin", squeue=squeue, sacct=sacct, scontrol=scontrol)
    result = tool("slurm", "--job", "76", "--job", "90", "--job", "5", PATH=path)
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(record["kind"], record.get("job")) for record in events] == [("job", "76"), ("job", "88_3"), ("note", None)]
    assert "accounting storage is disabled" in result.stderr
    assert "Invalid job id" in result.stderr
    assert result.returncode == 0


def test_one_job_of_many(tool: Any) -> None:
    answer = json.dumps({"jobs": [OLD, OLD | {"job_id": 90, "array_job_id": 88, "array_task_id": 3}]})
    for job_id, expected in (("76", "76"), ("88", "88_3"), ("88_3", "88_3")):
        (line,) = tool("slurm", "--job", job_id, "-", stdin=answer).stdout.splitlines()
        assert json.loads(line)["job"] == expected
    assert tool("slurm", "--job", "1; rm -rf /", "-", stdin=answer).returncode == 2


def test_a_controller_that_does_not_answer(tool: Any) -> None:
    answer = {"errors": [{"description": "Failed while looking for jobs", "error_number": -1}], "jobs": []}
    result = tool("slurm", "-", stdin=json.dumps(answer))
    assert (result.returncode, result.stderr) == (0, "lt-monitor: -: Failed while looking for jobs\n")
    assert json.loads(result.stdout)["note"] == "missing"
    result = tool("slurm", "-", stdin=json.dumps({"errors": [], "jobs": []}))
    assert (result.stdout, result.stderr) == ("", "")


def test_no_slurm(tool: Any, tmp_path: Path) -> None:
    result = tool("slurm", PATH=str(tmp_path))
    assert (result.returncode, result.stderr) == (0, "lt-monitor: squeue: not installed here\n")
    assert json.loads(result.stdout)["note"] == "missing"


def test_the_state_of_a_job_decides_whether_silence_is_a_hang(tool: Any, tmp_path: Path) -> None:
    log = tmp_path / "gpt_76.out"
    line = " [2026-01-01 10:00:{:02}] iteration {:8d}/     100 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.0E+00 |\n"
    log.write_text("".join(line.format(number, number) for number in range(1, 30)))
    queue = {"standard_output": "gpt_76.out", "current_working_directory": str(tmp_path)}
    scraped = tool("scrape", str(log)).stdout
    for state, code in (("RUNNING", 3), ("PENDING", 0)):
        jobs = tool("slurm", "-", stdin=json.dumps({"jobs": [OLD | queue | {"job_state": state}]})).stdout
        assert tool("alert", "-", stdin=scraped + jobs).returncode == code


VALUES = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9)
OBJECTS = st.dictionaries(st.sampled_from(["set", "infinite", "number", "current", "return_code"]), VALUES)


@given(st.dictionaries(st.sampled_from(sorted(NEWEST)), VALUES | OBJECTS | st.lists(VALUES, max_size=2)))
def test_any_shape_of_a_job_gives_valid_records(changes: dict[str, Any]) -> None:
    for record in slurm_jobs.parse(json.dumps({"jobs": [NEWEST | changes]}), "-"):
        assert records.problem(json.loads(json.dumps(record))) is None


@given(st.text(alphabet=st.sampled_from(list('JobId=7 |\n{}[]StdOut,"')), max_size=200))
def test_any_text_gives_valid_records(text: str) -> None:
    for record in slurm_jobs.parse("JobId=7 JobState=RUNNING " + text, "-"):
        assert records.problem(record) is None


@pytest.mark.parametrize(
    ("exit_code", "state", "expected"),
    [
        ("0:0", "COMPLETED", {"exit_code": 0}),
        ("75:0", "FAILED", {"exit_codes": [75, 203]}),
        ("1:0", "FAILED", {"exit_codes": [1, 129]}),
        ("0:9", "FAILED", {"exit_code": 0, "signal": 9}),
        ("0:0", "FAILED", {}),
        ("0:0", "CANCELLED by 0", {}),
        ({"status": "SUCCESS", "return_code": 0}, "FAILED", {}),
        ({"status": "SUCCESS", "return_code": 0}, "COMPLETED", {"exit_code": 0}),
        ({"status": ["ERROR"], "return_code": number(203)}, "FAILED", {"exit_code": 203}),
        (
            {"status": ["SIGNALED"], "return_code": number(0), "signal": {"id": number(9)}},
            "FAILED",
            {"exit_code": 0, "signal": 9},
        ),
    ],
)
def test_an_exit_code_that_accounting_does_not_know(exit_code: Any, state: str, expected: dict[str, Any]) -> None:
    """sacct takes 128 off every code from 128 on; the JSON of 22.05 says SUCCESS and 0 of every job."""
    if isinstance(exit_code, str):
        answer = f"JobIDRaw|JobID|State|ExitCode|WorkDir\n1|1|{state}|{exit_code}|/fsx\n"
    else:
        answer = json.dumps({"jobs": [{"job_id": 1, "state": {"current": state.split()[0]}, "exit_code": exit_code}]})
    (record,) = slurm_jobs.parse(answer, "-")
    assert {key: record[key] for key in ("exit_code", "exit_codes", "signal") if key in record} == expected
    assert (record["run"], "log" in record) == ("job-1", False)


@pytest.mark.parametrize(
    ("line", "log"),
    [
        ("sbatch -N2 -o gpt-%j.log job.sh", "/fsx/gpt-1.log"),
        ("sbatch -ogpt-%j.log job.sh", "/fsx/gpt-1.log"),
        ("sbatch --output=/logs/a|b-%x.log job.sh", "/logs/a|b-gpt.log"),
        ("sbatch --output 'my log' job.sh", "/fsx/my log"),
        ("sbatch --out gpt.log job.sh", "/fsx/gpt.log"),
        ("sbatch -Ho first.log -N 2 --parsable --output=last.log job.sh", "/fsx/last.log"),
        ("sbatch job.sh -o of-the-script.log", None),
        ("sbatch --mem 8G --exclusive job.sh --output of-the-script.log", None),
        ("salloc -N2 srun -o of-a-step.log job.sh", None),
        ("sbatch -o %N-%u-%b.log job.sh", None),
        ("sbatch -o %N-%u.log job.sh", "/fsx/n1-ann.log"),
        ("sbatch -o %5j-%9x.log job.sh", "/fsx/00001-gpt.log"),
        ("sbatch -o %20j-%004j.log job.sh", "/fsx/0000000001-0001.log"),
        ("sbatch -o %A-%a-%J-%s-%n-%t-%%-%q.log job.sh", "/fsx/1-4294967294-1-batch-0-0-%-%q.log"),
        (r"sbatch -o '\%j.log' job.sh", "/fsx/%j.log"),
        ("sbatch -e errors-%j.log job.sh", None),
        ("sbatch job.sh", None),
        ("sbatch 'job.sh", None),
        ("", None),
    ],
)
def test_the_log_of_a_job_that_only_accounting_knows(line: str, log: str | None) -> None:
    head = "JobIDRaw|JobID|JobName|User|NodeList|State|ExitCode|WorkDir|SubmitLine\n"
    answer = f"{head}1|1|gpt|ann|n[1-4,7]|FAILED|3:0|/fsx|{line}\n"
    (record,) = slurm_jobs.parse(answer, "-")
    assert record.get("log") == log


def accounted(release: str, code: int, signal: int = 0, task: int | None = None) -> dict[str, Any]:
    """A job in `sacct --json`, with the keys that the release's data parser gives it."""
    is_exit = {"status": ["ERROR"], "return_code": number(code), "signal": {"id": number(0) | {"set": False}, "name": ""}}
    is_signal = {"status": ["SIGNALED"], "return_code": number(0) | {"set": False}, "signal": {"id": number(signal), "name": "x"}}
    job = {
        "job_id": 90,
        "name": "gpt",
        "user": "ann",
        "nodes": "n[1-2]",
        "working_directory": "/fsx/ann",
        "array": {"job_id": 88 if task is not None else 0, "task_id": number(task or 0) | {"set": task is not None}},
        "het": {"job_id": 0, "job_offset": number(0) | {"set": False}},
        "state": {"current": ["FAILED"], "reason": "None"},
        "exit_code": is_signal if signal else is_exit,
        "submit_line": "sbatch -o %x-%4j.log job.sh",
    }
    if release >= "24.11":
        job |= {"restart_cnt": 2, "stdout": "logs/%x-%A.log", "stdout_expanded": "/fsx/ann/logs/gpt-90.log"}
    if release == "22.05":
        wrong = {"status": "SUCCESS", "return_code": 0}
        ended = {"status": "SIGNALED", "return_code": None, "signal": {"signal_id": signal, "name": "x"}}
        job |= {
            "array": {"job_id": 88 if task is not None else 0, "task_id": task},
            "het": {"job_id": 0, "job_offset": None},
            "state": {"current": "FAILED", "reason": "None"},
            "exit_code": ended if signal else wrong,
        }
        del job["submit_line"]
    return job


@pytest.mark.parametrize("release", ["22.05", "23.11", "24.11", "25.05"])
def test_the_json_of_accounting_in_every_release(release: str) -> None:
    log = {"22.05": None, "23.11": "/fsx/ann/gpt-0090.log"}.get(release, "/fsx/ann/logs/gpt-90.log")
    jobs = parsed(
        accounted(release, 203), accounted(release, 0, signal=9) | {"job_id": 91}, accounted(release, 0) | {"job_id": 1}
    )
    assert [one.get("exit_code") for one in jobs] == [None if release == "22.05" else 203, 0, None]
    assert [one.get("signal") for one in jobs] == [None, 9, None]
    assert (jobs[0].get("log"), jobs[0]["run"]) == (log, log.removesuffix(".log") if log else "job-90")
    assert jobs[0].get("restarts") == (2 if release >= "24.11" else None)
    (task,) = parsed(accounted(release, 3, task=7))
    assert task["job"] == "88_7"


@pytest.mark.parametrize(
    ("states", "expected"),
    [(["COMPLETING", "FAILED"], "FAILED"), (["RUNNING", "COMPLETING"], "RUNNING"), (["REQUEUED"], "REQUEUED"), ([], None)],
)
def test_flags_beside_a_state(states: list[str], expected: str | None) -> None:
    assert [one["state"] for one in parsed(NEW | {"job_state": states})] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("22.05", {"exit_codes": [75, 203], "log": None}),
        ("23.11", {"exit_code": 203, "log": None}),
        ("25.05", {"exit_code": 203, "log": "/fsx/ann/logs/gpt-90.log"}),
    ],
)
def test_the_answers_of_accounting_complete_each_other(tool: Any, tmp_path: Path, version: str, expected: dict[str, Any]) -> None:
    """An sacct that does not know a field says so and prints nothing; its JSON is exact from 23.02 on."""
    fields = {"22.05": "SubmitLine", "23.11": "SubmitLine", "25.05": "StdOut,SubmitLine"}[version]
    job = json.dumps({"jobs": [accounted(version, 203) | {"submit_line": "sbatch job.sh"}]})
    row = "90|90|gpt|FAILED|75:0|2026-11-21T10:00:00|2026-11-21T10:01:00|2026-11-21T12:00:00|2|n1|ann|p5|/fsx/ann|"
    row += ("logs/%x-%j.log|" if "StdOut" in fields else "") + "sbatch job.sh"
    sacct = f"""case "$*" in
*--json*) cat <<'END'
{job}
END
;;
*{slurm_jobs.SACCT_FIELDS},{fields}) printf '%s\n' '{f"{slurm_jobs.SACCT_FIELDS},{fields}".replace(",", "|")}' '{row}';;
*) echo 'sacct: error: Invalid field requested: "StdOut"' >&2; exit 1;;
esac"""
    squeue = "echo '{\"jobs\": []}'"
    scontrol = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    path = install(tmp_path / "bin", squeue=squeue, sacct=sacct, scontrol=scontrol)
    (record,) = (json.loads(line) for line in tool("slurm", "--job", "90", PATH=path).stdout.splitlines())
    assert {key: record.get(key) for key in expected} == expected
    assert ("exit_codes" in record) == (version == "22.05")


def test_a_job_is_one_truth_from_the_queue_to_accounting(tool: Any, tmp_path: Path) -> None:
    log = tmp_path / "gpt-1.log"
    line = " [2026-01-01 10:00:{:02}] iteration {:8d}/     100 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.0E+00 |\n"
    log.write_text("".join(line.format(number, number) for number in range(1, 30)))
    job = OLD | {"job_id": 1, "standard_output": str(log)}
    failed = job | {"job_state": "FAILED", "exit_code": 203 << 8, "state_reason": "NonZeroExitCode"}
    accounted = "JobIDRaw|JobID|JobName|State|ExitCode|WorkDir|SubmitLine\n1|1|gpt|FAILED|75:0|/fsx|sbatch job.sh\n"
    alerts = []
    for answer in (json.dumps({"jobs": [job]}), json.dumps({"jobs": [failed]}), accounted, accounted):
        events = tool("scrape", str(log)).stdout + tool("slurm", "-", stdin=answer).stdout
        result = tool("alert", "--json", "--state", "alert.state", "-", stdin=events)
        alerts.append([(one["rule"], one["run"], one["message"]) for one in map(json.loads, result.stdout.splitlines())])
    run = str(tmp_path / "gpt-1")
    assert [rule for rule, _, _ in alerts[0]] == ["hang"]
    assert alerts[1:] == [[("job-failed", run, "job 1 is FAILED, exit code 203, NonZeroExitCode")], [], []]


@pytest.mark.parametrize(
    ("status", "said"),
    [("0:9", "signal 9 (SIGKILL)"), ("0:53", "Slurm could not open its output file (0:53)"), ("0:64", "signal 64 (SIGRTMAX)")],
)
def test_the_signal_that_ended_a_job_is_said(tool: Any, status: str, said: str) -> None:
    accounted = f"JobIDRaw|JobID|JobName|State|ExitCode|WorkDir\n1|1|gpt|FAILED|{status}|/fsx\n"
    result = tool("alert", "-", stdin=tool("slurm", "-", stdin=accounted).stdout)
    assert result.stdout == f"CRITICAL job-failed job-1: job 1 is FAILED, {said}\n"


def test_a_job_that_only_accounting_knows_belongs_to_the_log_with_its_number(tool: Any, tmp_path: Path) -> None:
    """Without -o on its command line: no second run, and no hang of the first."""
    line = " [2026-01-01 10:00:{:02}] iteration {:8d}/     100 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.0E+00 |\n"
    events = ""
    for name in ("gpt_76.out", "gpt_77.out"):
        (tmp_path / name).write_text("".join(line.format(number, number) for number in range(1, 30)))
        events += tool("scrape", name).stdout
    table = "JobIDRaw|JobID|JobName|State|ExitCode|WorkDir\n76|76|gpt|FAILED|1:0|/fsx\n77|77|gpt|COMPLETED|0:0|/fsx\n"
    result = tool("alert", "-", stdin=events + tool("slurm", "-", stdin=table).stdout)
    assert result.stdout == "CRITICAL job-failed gpt_76: job 76 is FAILED, exit code 1 or 129\n"


def test_a_code_that_is_one_of_two_is_told_as_both(tool: Any) -> None:
    accounted = "JobIDRaw|JobID|JobName|State|ExitCode|WorkDir\n1|1|gpt|FAILED|75:0|/fsx\n"
    result = tool("alert", "-", stdin=tool("slurm", "-", stdin=accounted).stdout)
    assert result.stdout == "CRITICAL job-failed job-1: job 1 is FAILED, exit code 75 or 203\n"


ACCOUNTED = "JobIDRaw|JobID|State|ExitCode|WorkDir|SubmitLine\n"
TABLE = """\
JobID           JobName  Partition    Account  AllocCPUS      State ExitCode
------------ ---------- ---------- ---------- ---------- ---------- --------
76                  gpt         p5          a          8 OUT_OF_ME+    0:125
76.batch          batch                     a          8 OUT_OF_ME+    0:125
"""


@pytest.mark.parametrize(
    ("answer", "jobs"),
    [
        # A task of an array, tasks that wait, the parts of a heterogeneous job, and a job that was requeued
        (ACCOUNTED + "90|88_3|FAILED|1:0|/fsx|sbatch -o %A_%a.log x\n", [("88_3", "FAILED", "/fsx/88_3.log", None)]),
        (ACCOUNTED + "90|88_3|FAILED|1:0|/fsx|sbatch -o %j.log x\n", [("88_3", "FAILED", "/fsx/90.log", None)]),
        (ACCOUNTED + "88|88_[4-9%2]|PENDING|0:0|/fsx|\n", [("88", "PENDING", None, None)]),
        (
            ACCOUNTED + "70|70+0|COMPLETED|0:0|/fsx|sbatch -o %j.log x\n71|70+1|FAILED|1:0|/fsx|sbatch -o %j.log x\n",
            [("70", "COMPLETED", "/fsx/70.log", None), ("71", "FAILED", "/fsx/70.log", None)],
        ),
        (
            ACCOUNTED + "77|77|NODE_FAIL|0:0|/fsx|sbatch -o a x\n77|77|COMPLETED|0:0|/fsx|sbatch -o a x\n",
            [("77", "COMPLETED", "/fsx/a", 1)],
        ),
        (
            json.dumps({"jobs": [{"job_id": 7, "state": {"current": [state]}} for state in ("REQUEUED", "FAILED")]}),
            [("7", "FAILED", None, 1)],
        ),
        # Without -P, and columns without JobIDRaw
        (TABLE, [("76", "OUT_OF_MEMORY", None, None)]),
        ("JobID|JobName|State|ExitCode\n76|gpt|FAILED|1:0\n76.batch|batch|FAILED|1:0\n", [("76", "FAILED", None, None)]),
    ],
)
def test_accounting_gives_what_the_queue_gave(answer: str, jobs: list[tuple[str, str, str | None, int | None]]) -> None:
    found = slurm_jobs.parse(answer, "-")
    assert [(one["job"], one["state"], one.get("log"), one.get("restarts")) for one in found] == jobs
    assert all(one.get("signal", 0) <= 64 for one in found)


@pytest.mark.parametrize(("requested", "jobs"), [("70", ["70", "71"]), ("70+1", ["71"]), ("71", ["71"]), ("72", [])])
@pytest.mark.parametrize(
    "answer",
    [
        ACCOUNTED + "70|70+0|RUNNING|0:0|/fsx|\n71|70+1|FAILED|1:0|/fsx|\n90|90|RUNNING|0:0|/fsx|\n",
        "JobId=70 HetJobId=70 HetJobOffset=0 JobState=RUNNING\n\nJobId=71 HetJobId=70 HetJobOffset=1 JobState=FAILED\n",
    ],
    ids=["sacct", "scontrol"],
)
def test_components_of_a_heterogeneous_job_are_asked_for(answer: str, requested: str, jobs: list[str], tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text(answer)
    records = slurm_jobs.sample(str(tmp_path / "jobs"), [requested])
    assert [record["job"] for record in records] == jobs
    assert all(record["component"] == {"70": "70+0", "71": "70+1"}[record["job"]] for record in records)
