"""lt-train on the two nodes of a real Slurm: the README's script, a printed job file, and what may happen to a job."""

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from running import losses

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FAULTS = ROOT / "tests/train/faults"
# As in the README's script.
OPTIONS = "--model tiny --seq-length 256 --micro-batch-size 4 --train-iters 40"
# Each step of a run on the first node takes a second until there is a file: time for something to happen to it.
SLOW = """\
import os, time
if os.environ.get("RANK") == "0":
    original = os.pwrite
    def slow(*arguments):
        if not os.path.exists({file!r}):
            time.sleep(1)
        return original(*arguments)
    os.pwrite = slow
"""
ENDED = re.compile(r"ended by SIGUSR1 at iteration (\d+); the same command continues")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Looks like the repository, and is seen by both nodes."""
    directory = tmp_path_factory.mktemp("shared")
    (directory / "tests").symlink_to(ROOT / "tests")
    return directory


@pytest.fixture(scope="module")
def undisturbed(slurm: Any, directory: Path) -> str:
    """The log of the README's script, which leaves its results in `directory`. The loss of each step is written down."""
    (script,) = re.findall(r"^```bash\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    options = ("--parsable", "-o", "readme.out", "--export=ALL,LT_TRAIN_LOG_INTERVAL=1")
    job = slurm.run("sbatch", *options, cwd=directory, stdin=script)
    return str(slurm.finish(job, directory / "readme.out"))


def test_the_script_of_the_readme(directory: Path, undisturbed: str) -> None:
    assert "2 node(s) found in the environment of srun, rendezvous n1:" in undisturbed
    assert "on 2 cpu rank(s)" in undisturbed
    assert "40 / 40 (100.0%)" in undisturbed
    checkpoint, end = (json.loads(line) for line in undisturbed.splitlines() if line.startswith('{"v"'))
    assert (checkpoint["path"], checkpoint["format"]) == (str(directory / "pipeline/nodes-model"), "hf")
    assert end == {"v": 1, "kind": "end", "count": 1}
    assert len(losses(directory / "pipeline/nodes")) >= 40


def wait_for(log: Path, pattern: str) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if log.exists() and re.search(pattern, log.read_text()):
            return
        time.sleep(0.1)
    raise AssertionError(f"no {pattern} in {log}:\n{log.read_text()}")


def ranks(job: str) -> dict[str, int]:
    """The processes of a job's ranks, by number."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            variables = (process / "environ").read_text(errors="replace").split("\0")
        except OSError:
            continue
        if b"lt_train.rank" in command and f"SLURM_JOB_ID={job}" in variables:
            (number,) = (variable[5:] for variable in variables if variable.startswith("RANK="))
            found[number] = int(process.name)
    return found


def test_a_printed_job_meets_its_time_limit_and_loses_a_rank(
    slurm: Any, directory: Path, undisturbed: str, tmp_path: Path
) -> None:
    """It saves before the limit, is queued again, loses the second node's rank, and ends with the losses of a quiet run."""
    run = directory / "limited"
    stages = ("--convert", f"--to hf -o {run}-model", "--save", str(run), str(directory / "pipeline/data_text_document"))
    render = ("lt-train", "render", "slurm", "--nodes", "2", "--time", "00:01:00", *OPTIONS.split(), "--log-interval", "1")
    script = slurm.run(*render, *stages, cwd=directory)
    (tmp_path / "sitecustomize.py").write_text(SLOW.format(file=str(tmp_path / "fast")))
    options = ("--parsable", "-o", "limited.out", f"--export=ALL,PYTHONPATH={tmp_path}")
    job = slurm.run("sbatch", *options, cwd=directory, stdin=script)
    log = directory / "limited.out"

    wait_for(log, ENDED.pattern)
    slurm.wait(job, "PENDING", "RUNNING")
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=UNLIMITED")
    saved = int(re.findall(ENDED, log.read_text())[-1])
    wait_for(log, rf"loaded checkpoint from \S+ at iteration {saved}\n(?s:.*) iteration +{saved + 2}/")
    before = ranks(job)
    os.kill(before["1"], signal.SIGKILL)
    (tmp_path / "fast").touch()
    begin = time.monotonic()
    while set(before.values()) & set(ranks(job).values()):
        assert time.monotonic() - begin < 30, "the other rank still waits"
        time.sleep(0.1)
    text = slurm.finish(job, log)

    assert "Restarts=1" in slurm.run("scontrol", "show", "job", job)
    assert "rank 1 on n2 was ended by SIGKILL" in text
    assert len(re.findall(rf"loaded checkpoint from \S+ at iteration {saved}\n", text)) == 2
    assert losses(run) == losses(directory / "pipeline/nodes")
    weights = [(directory / name / "model.safetensors").read_bytes() for name in ("limited-model", "pipeline/nodes-model")]
    assert weights[0] == weights[1]
