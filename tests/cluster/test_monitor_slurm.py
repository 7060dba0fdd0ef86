"""lt-monitor beside a real Slurm: states of jobs, hangs, requeues, and a controller that does not answer."""

import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TOOL = [sys.executable, "-m", "lt_monitor"]


def monitor(slurm: Any, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TOOL, *arguments], env=slurm.environment, input=stdin, capture_output=True, text=True)


def jobs(slurm: Any, *numbers: str) -> list[dict[str, Any]]:
    options = [argument for number in numbers for argument in ("--job", number)]
    return [json.loads(line) for line in monitor(slurm, "slurm", *options).stdout.splitlines()]


def steps(count: int, seconds_ago: float) -> str:
    lines = []
    for number in range(1, count + 1):
        time = datetime.datetime.now() - datetime.timedelta(seconds=seconds_ago + count - number)
        lines.append(
            f" [{time:%Y-%m-%d %H:%M:%S.%f}] iteration {number:8d}/    1000 | elapsed time per iteration (ms): 1000.0 |"
            f" lm loss: 2.5E+00 | number of nan iterations:   0 |"
        )
    return "\n".join(lines)


def test_a_job_from_the_queue_to_its_end(slurm: Any, tmp_path: Path) -> None:
    script = f"cat <<'END'\n{steps(50, 900)}\nEND\nsrun -l hostname\nsleep 600"
    job = slurm.submit(tmp_path, script, "-N2", "-J", "gpt", "-o", "%x-%j.out")
    slurm.wait(job, "RUNNING")
    log = tmp_path / f"gpt-{job}.out"
    for _ in range(3000):
        if log.exists() and len(log.read_text().splitlines()) == 52:
            break
        time.sleep(0.1)
    (found,) = jobs(slurm, job)
    assert (found["state"], found["node_count"], found["nodes"], found["name"]) == ("RUNNING", 2, "n[1-2]", "gpt")
    assert found["log"] == str(log)
    scraping = monitor(slurm, "scrape", str(log))
    assert scraping.returncode == 0, scraping.stderr
    scraped = scraping.stdout
    assert json.loads(scraped.splitlines()[0])["run"] == found["run"]

    hanging = monitor(slurm, "alert", "-", stdin=scraped + monitor(slurm, "slurm", "--job", job).stdout)
    assert (hanging.returncode, hanging.stdout.split()[:2]) == (3, ["CRITICAL", "hang"])

    slurm.run("scancel", job)
    slurm.wait(job, "CANCELLED")
    (found,) = jobs(slurm, job)
    assert found["state"] == "CANCELLED"
    over = monitor(slurm, "alert", "-", stdin=scraped + json.dumps(found) + "\n")
    assert over.returncode == 0
    assert over.stdout.startswith(f"INFO cancelled {found['run']}: job {job} is CANCELLED")


def test_a_job_that_fails(slurm: Any, tmp_path: Path) -> None:
    job = slurm.submit(tmp_path, "exit 3")
    slurm.wait(job, "FAILED")
    (found,) = jobs(slurm, job)
    assert (found["state"], found["exit_code"], found["reason"]) == ("FAILED", 3, "NonZeroExitCode")
    done = monitor(slurm, "alert", "-", stdin=json.dumps(found) + "\n")
    assert (done.returncode, done.stdout.split()[:2]) == (3, ["CRITICAL", "job-failed"])


def test_a_job_that_waits(slurm: Any, tmp_path: Path) -> None:
    job = slurm.submit(tmp_path, "true", "--begin=now+1hour")
    (found,) = jobs(slurm, job)
    assert (found["state"], found["reason"]) == ("PENDING", "BeginTime")
    slurm.run("scancel", job)


def test_an_array_and_a_requeue(slurm: Any, tmp_path: Path) -> None:
    job = slurm.submit(tmp_path, "sleep 600", "--array=3-4", "--requeue", "--open-mode=append")
    slurm.wait(f"{job}_3", "RUNNING")
    slurm.wait(f"{job}_4", "RUNNING")
    found = {each["job"]: each for each in jobs(slurm, job)}
    assert set(found) == {f"{job}_3", f"{job}_4"}
    assert found[f"{job}_3"]["log"] == str(tmp_path / f"slurm-{job}_3.out")
    slurm.run("scontrol", "requeue", f"{job}_4")
    slurm.wait(f"{job}_4", "PENDING")
    (again,) = jobs(slurm, f"{job}_4")
    assert again["restarts"] == 1
    slurm.run("scancel", job)


def test_scontrol_says_the_same_as_squeue(slurm: Any, tmp_path: Path) -> None:
    job = slurm.submit(tmp_path, "sleep 600", "-N1", "-o", "a b %j.out", "--comment", "x=y z")
    slurm.wait(job, "RUNNING")
    (queued,) = jobs(slurm, job)
    shown = slurm.run("scontrol", "show", "job", job)
    (from_text,) = (json.loads(line) for line in monitor(slurm, "slurm", "-", stdin=shown).stdout.splitlines())
    same = ("run", "job", "state", "name", "partition", "user", "nodes", "node_count", "restarts", "start_time", "log")
    assert {key: queued[key] for key in same} == {key: from_text[key] for key in same}
    slurm.run("scancel", job)


def test_jobs_that_nobody_knows_and_a_cluster_without_accounting(slurm: Any) -> None:
    done = monitor(slurm, "slurm", "--job", "999999")
    assert done.returncode == 0
    assert "accounting storage is disabled" in done.stderr
    assert "Invalid job id" in done.stderr


def test_a_controller_that_is_not_there(slurm: Any, tmp_path: Path) -> None:
    configuration = (slurm.folder / "slurm.conf").read_text()
    (tmp_path / "slurm.conf").write_text(configuration.replace("SlurmctldPort=", "SlurmctldPort=1 #"))
    begin = time.monotonic()
    environment = slurm.environment | {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    done = subprocess.run([*TOOL, "slurm"], env=environment, capture_output=True, text=True)
    assert time.monotonic() - begin < 30
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["note"] == "missing"
    assert os.environ.get("SLURM_CONF") != str(tmp_path / "slurm.conf")
