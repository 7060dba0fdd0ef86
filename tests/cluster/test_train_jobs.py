"""lt-train on the two nodes of a real Slurm: the README's script, a printed job file, and what may happen to a job."""

import dataclasses
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import losses, train

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FAULTS = ROOT / "tests/train/faults"
OPTIONS = "--model tiny --num-layers 1 --seq-length 64 --micro-batch-size 4 --train-iters 40 --eval-iters 1"
# Until there is a file, steps take so long that there is time for something to happen.
SLOW = """\
import os, time
if os.environ.get("RANK") == "0":
    original = os.pwrite
    def slow(*arguments):
        if not os.path.exists({file!r}):
            time.sleep(1.5)
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
    """The log of the README's script, which leaves its results in `directory`. The loss of each step is written down, and of the
    40 steps a fifth are made. Its ranks are processes as a user has them, those of the other jobs are copies."""
    (script,) = re.findall(r"^```bash\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert script.count("--train-iters 40 ") == 1
    script = script.replace("--train-iters 40 ", "--train-iters 8 ")
    options = ("--parsable", "-o", "readme.out", f"--export=ALL,LT_TRAIN_LOG_INTERVAL=1,PATH={slurm.plain_path}")
    job = slurm.run("sbatch", *options, cwd=directory, stdin=script)
    return str(slurm.finish(job, directory / "readme.out"))


def test_the_script_of_the_readme(directory: Path, undisturbed: str) -> None:
    assert "2 node(s) found in the environment of srun, rendezvous n1:" in undisturbed
    assert "on 2 cpu rank(s)" in undisturbed
    assert "8 / 8 (100.0%)" in undisturbed
    checkpoint, end = (json.loads(line) for line in undisturbed.splitlines() if line.startswith('{"v"'))
    assert (checkpoint["path"], checkpoint["format"]) == (str(directory / "pipeline/nodes-model"), "hf")
    assert end == {"v": 1, "kind": "end", "count": 1}
    assert len(losses(directory / "pipeline/nodes")) >= 8


@pytest.fixture(scope="module")
def expected(directory: Path, undisturbed: str) -> Path:
    """A run of OPTIONS on two ranks of this machine, to which nothing happens."""
    place = ("--ranks", "2", "--save", str(directory / "expected"), str(directory / "pipeline/data_text_document"))
    done = train(*OPTIONS.split(), "--log-interval", "1", "--device", "cpu", *place)
    assert done.code == 0, done.err
    return directory / "expected"


@dataclasses.dataclass(frozen=True)
class Events:
    """The log of a job, the step at which it was saved before its time limit, and the task that was cancelled later."""

    log: str
    saved: int
    cancelled: str


@pytest.fixture(scope="module")
def eventful(slurm: Any, directory: Path, undisturbed: str, tmp_path_factory: pytest.TempPathFactory) -> Events:
    """A printed job that loses the second node's rank and the first node's disk, saves before its time limit, is queued again,
    and has its step cancelled. Each begins when some steps are done, however long the machine took for them.
    """
    run, place = directory / "eventful", tmp_path_factory.mktemp("slow")
    stages = ("--convert", f"--to hf -o {run}-model", "--save", str(run), str(directory / "pipeline/data_text_document"))
    local = ("--save-interval", "100", "--save-local-interval", "2", "--save-local", str(slurm.folder / "disk/copies"))
    render = ("lt-train", "render", "slurm", "--nodes", "2", "--time", "00:40:00", *OPTIONS.split(), "--log-interval", "1")
    script = slurm.run(*render, *local, *stages, cwd=directory)
    fast, log = place / "fast", directory / "eventful.out"
    (place / "sitecustomize.py").write_text(SLOW.format(file=str(fast)))
    options = ("--parsable", "-o", log.name, f"--export=ALL,PYTHONPATH={place}")
    job = slurm.run("sbatch", *options, cwd=directory, stdin=script)

    # Nothing is in SAVE when the rank dies, and what its node's neighbour had on its disk is gone: the next node has it.
    slurm.read_until(log, r"successfully saved local checkpoint from iteration +4:")
    before = slurm.ranks(job)
    os.kill(before["1"], signal.SIGKILL)
    (slurm.folder / "disk.n1/copies").rename(slurm.folder / "disk.n1/lost")
    begin = time.monotonic()
    while set(before.values()) & set(slurm.ranks(job).values()):
        assert time.monotonic() - begin < 300, "the other rank still waits"
        time.sleep(0.1)
    slurm.read_until(log, r"recovered in(?s:.*) iteration ")

    # Within the five minutes before the limit that the signal is sent in.
    elapsed_minutes = int(slurm.run("squeue", "-h", "-O", "TimeUsed", "-j", job).split(":")[-2])
    slurm.run("scontrol", "update", f"JobId={job}", f"TimeLimit={elapsed_minutes + 4}")
    slurm.read_until(log, ENDED.pattern)
    slurm.wait(job, "PENDING", "RUNNING")
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=UNLIMITED")
    saved = int(re.findall(ENDED, log.read_text())[-1])

    slurm.read_until(log, rf"loaded checkpoint from \S+ at iteration {saved}\n(?s:.*) iteration +{saved + 1}/")
    steps = slurm.run("squeue", "--steps", "-h", "-o", "%i", "-j", job).split()
    (training,) = (step for step in steps if step.rpartition(".")[2].isdigit())
    slurm.run("scancel", training)
    fast.touch()
    text = slurm.finish(job, log)
    assert "Restarts=0" not in slurm.run("scontrol", "show", "job", job)
    return Events(text, saved, training)


def test_what_happens_to_a_job_changes_no_loss(slurm: Any, directory: Path, expected: Path, eventful: Events) -> None:
    assert losses(directory / "eventful") == losses(expected)
    slurm.run("lt-convert", str(expected), "--to", "hf", "-o", "expected-model", cwd=directory)
    weights = [(directory / name / "model.safetensors").read_bytes() for name in ("eventful-model", "expected-model")]
    assert weights[0] == weights[1]


def test_a_lost_rank_and_a_node_whose_disk_is_lost(slurm: Any, eventful: Events) -> None:
    assert "rank 1 on n2 was ended by SIGKILL" in eventful.log
    assert re.search(r"the local copies of iteration \d+ are newer than any checkpoint in SAVE", eventful.log)
    assert not any(slurm.folder.glob("disk.*/copies/lt-*"))


def test_a_job_that_was_saved_before_its_time_limit_goes_on(eventful: Events) -> None:
    assert re.search(rf"loaded checkpoint from \S+ at iteration {eventful.saved}\n", eventful.log)


def test_a_cancelled_step_is_started_again(eventful: Events) -> None:
    """`scancel JOB.STEP` in the middle of a run: the job goes on with another step."""
    # Srun ends the step whose rank is killed, too, before the job is queued again.
    assert f"STEP {eventful.cancelled} ON n1 CANCELLED" in eventful.log.partition("ended by SIGUSR1")[2]
    assert len(re.findall(r" iteration +40/", eventful.log)) == 1


def test_cron_watches_over_the_logs(
    slurm: Any, cron: Callable[[str, list[Path]], None], directory: Path, undisturbed: str, eventful: Events
) -> None:
    """The manual's line of cron, with what Slurm knows, and metrics for Prometheus.

    In one minute only: in the next one there would be nothing new to say.
    """
    watch = "(lt-monitor scrape --state scrape.state *.out; lt-monitor slurm) | lt-monitor alert --state alert.state"
    variables = f"SLURM_CONF={slurm.environment['SLURM_CONF']}\nPATH={slurm.environment['PATH']}\n"
    lines = (f"{watch} --heartbeat beat - > alerts 2> errors; touch alerted", "lt-monitor prom -o lt.prom *.out 2> prom.errors")
    crontab = variables + "".join(f"1 * * * * cd {directory} && {line}\n" for line in lines)
    cron(crontab, [directory / "alerted", directory / "lt.prom"])
    assert (directory / "errors").read_text() == (directory / "prom.errors").read_text() == ""
    alerts = (directory / "alerts").read_text()
    assert "CRITICAL killed eventful: rank 1: lt-train: error: rank 1 on n2 was ended by SIGKILL" in alerts
    assert json.loads((directory / "beat").read_text())["worst"] == "critical"
    metrics = (directory / "lt.prom").read_text()
    for name, run, value in (("step", "readme", 8), ("step", "eventful", 40), ("restarts_total", "eventful", 3)):
        assert f'lt_train_{name}{{run="{run}",monitor="{directory}/lt"}} {value}\n' in metrics


def test_a_failure_that_repeats_ends_the_job(slurm: Any, directory: Path, undisturbed: str) -> None:
    """The first rank dies in its first save each time; the second node does not wait for a first that gives up."""
    small = ("--num-layers", "1", "--seq-length", "64", "--train-iters", "6", "--save-interval", "3", "--eval-iters", "0")
    render = ("lt-train", "render", "slurm", "--nodes", "2", "--model", "tiny", *small, "--save", "repeating")
    script = slurm.run(*render, str(directory / "pipeline/data_text_document"), cwd=directory)
    fault = f"PYTHONPATH={FAULTS},LT_FAULT=0:fsync:iter_0000003:SIGKILL:rank"
    job = slurm.run("sbatch", "--parsable", "-o", "repeating.out", f"--export=ALL,{fault}", cwd=directory, stdin=script)
    text = slurm.finish(job, directory / "repeating.out", code=78)
    told = [line for line in text.splitlines() if "rank 0 on n1 was ended by SIGKILL" in line]
    assert [line.startswith("lt-monitor: killed: ") for line in told] == [False] * 3 + [True], "the cause ends the job's log"
    assert "3 attempts from iteration 0 have failed after iteration 3, at the same step" in text
    assert "Restarts=0" in slurm.run("scontrol", "show", "job", job)


def test_an_elastic_job_takes_a_node_that_comes_back(slurm: Any, directory: Path, expected: Path) -> None:
    """n2 is away at first: the job begins on n1, is queued again, and ends on both, with the losses of a fixed job."""
    stages = ("--save", str(directory / "elastic"), str(directory / "pipeline/data_text_document"))
    options = (*OPTIONS.split(), "--log-interval", "1", "--ranks", "1", "--global-batch-size", "8", "--exit-interval", "20")
    script = slurm.run("lt-train", "render", "slurm", "--nodes", "1-2", *options, *stages, cwd=directory)
    slurm.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    try:
        job = slurm.run("sbatch", "--parsable", "-o", "elastic.out", cwd=directory, stdin=script)
        slurm.read_until(directory / "elastic.out", r"ended by --exit-interval at iteration 20;")
    finally:
        slurm.run("scontrol", "update", "NodeName=n2", "State=RESUME")
    text = slurm.finish(job, directory / "elastic.out")
    assert re.findall(r"lt-train: on (\d) of (\d) node", text) == [("1", "1"), ("2", "2")]
    assert losses(directory / "elastic") == pytest.approx(losses(expected), rel=1e-5)


def test_a_spare_node_takes_the_place_of_a_lost_one(slurm: Any, directory: Path, undisturbed: str, tmp_path: Path) -> None:
    """n1 leads and trains until its task is killed; n2 trains to the end, and the job ends well although srun does not."""
    small = ("--model", "tiny", "--num-layers", "1", "--seq-length", "64", "--train-iters", "8", "--eval-iters", "0")
    spares = ("--nodes", "2", "--ranks", "1", "--spare-nodes", "1", "--max-restarts", "1", "--save-interval", "2")
    render = ("lt-train", "render", "slurm", *spares, *small, "--micro-batch-size", "4", "--log-interval", "1")
    script = slurm.run(*render, "--save", "spared", str(directory / "pipeline/data_text_document"), cwd=directory)
    (tmp_path / "sitecustomize.py").write_text(SLOW.format(file=str(tmp_path / "fast")))
    options = ("--parsable", "-o", "spared.out", f"--export=ALL,PYTHONPATH={tmp_path}")
    job = slurm.run("sbatch", *options, cwd=directory, stdin=script)
    slurm.read_until(directory / "spared.out", "it waits for the loss of another node")
    slurm.read_until(directory / "spared.out", r"iteration +2/")
    rank = Path(f"/proc/{slurm.ranks(job)['0']}/environ").read_text()
    os.kill(int(rank.partition("LT_TRAIN_PARENT=")[2].partition("\0")[0]), signal.SIGKILL)
    slurm.read_until(directory / "spared.out", "the node that leads is lost, and node 1 leads now")
    (tmp_path / "fast").touch()
    slurm.finish(job, directory / "spared.out")
    assert len(losses(directory / "spared")) == 8
