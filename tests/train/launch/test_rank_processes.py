"""lt-train as the parent of its ranks, which are small scripts here: what they exit with and which signals they get."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import SMALL, catches, environment

from lt_shared.console import ExitCode
from lt_shared.contracts.manifest import Dataset

# Arguments: the program that stands in for Python, and the words of lt-train's command line.
LAUNCHER = """
import sys
from layouts import plan_of
from lt_shared import console
from lt_train.launch import rank_processes
import click

@click.command()
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def command(words):
    sys.executable, *arguments = words
    with rank_processes.Ranks(has_spare="--max-restarts" in arguments) as ranks:
        plan = plan_of(arguments)
        return ranks.run(plan.to_json(), plan.parallelism.world_size, plan.checkpointing.save is not None)

console.run(command, "lt-train")
"""
PROLOGUE = """
import os, pathlib, signal, sys, time
rank = int(os.environ.get("RANK", -1))
place = pathlib.Path(__file__).parent
"""
DEAF = """
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
(place / f"ready-{rank}").write_text(str(os.getpid()))
time.sleep(600)
"""
OBEDIENT = """
got = []
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, lambda number, frame: got.append(number))
(place / f"ready-{rank}").touch()
time.sleep(0.5)
assert not got, "the signal should be held back until the rank listens"
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT))
while not got:
    time.sleep(0.02)
time.sleep(0.5)
(place / f"got-{rank}").write_text(str([int(number) for number in got]))
sys.exit(75)
"""


# The second waits for the first, whose watchdog names it. The spare has no rank.
SUSPECTING = """
from lt_train.launch.control import VARIABLE, Controlled
control = Controlled(os.environ[VARIABLE], rank)
if rank == 0:
    control.suspect(1)
time.sleep(600)
"""


def launch(place: Path, dataset: Dataset, script: str, *options: str) -> subprocess.Popen[bytes]:
    """Start lt-train with two ranks that run the Python `script`, which knows its `rank` and `place`."""
    program = place / "worker.py"
    program.write_text(f"#!{sys.executable}\n{PROLOGUE}{script}\n")
    program.chmod(0o755)
    words = [str(program), *SMALL, "--ranks", "2", "--save", str(place / "run"), *options, dataset.prefix]
    with (place / "stderr").open("w") as stderr:
        return subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, "--", *words],
            env=environment()
            | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])},
            stderr=stderr,
        )


def ready(place: Path, process: subprocess.Popen[bytes]) -> None:
    """Both ranks are, and lt-train passes signals on: on a loaded machine that can be the last of the three."""
    deadline = time.monotonic() + 300
    while len(list(place.glob("ready-*"))) < 2 or not catches(process.pid, signal.SIGUSR1):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("sys.exit(0)", 0, ""),
        ("time.sleep(rank); sys.exit(75)", 75, ""),
        # The rank has said why.
        ("time.sleep(0 if rank else 600); sys.exit(65)", 65, ""),
        ("time.sleep(0 if rank else 600); os.kill(os.getpid(), signal.SIGSEGV)", 139, "rank 1 on"),
    ],
    ids=["done", "ended early", "failed", "crashed"],
)
def test_the_exit_code_is_that_of_the_ranks(tmp_path: Path, dataset: Dataset, script: str, code: int, said: str) -> None:
    process = launch(tmp_path, dataset, script)
    assert process.wait(timeout=300) == code
    err = (tmp_path / "stderr").read_text()
    assert len(err.splitlines()) == bool(said)
    assert said in err


def test_a_rank_that_hangs_is_ended(tmp_path: Path, dataset: Dataset) -> None:
    process = launch(tmp_path, dataset, SUSPECTING, "--max-restarts", "1")
    assert process.wait(timeout=300) == ExitCode.NO_PROGRESS
    said = (tmp_path / "stderr").read_text()
    assert "rank 1 on" in said and "hung and was ended" in said
    assert "dmesg" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_reaches_every_rank_once(tmp_path: Path, dataset: Dataset, number: signal.Signals) -> None:
    process = launch(tmp_path, dataset, OBEDIENT)
    ready(tmp_path, process)
    process.send_signal(number)
    assert process.wait(timeout=300) == 75, (tmp_path / "stderr").read_text()
    assert [(tmp_path / f"got-{rank}").read_text() for rank in (0, 1)] == [f"[{int(number)}]"] * 2


@pytest.mark.parametrize(("numbers", "code"), [((signal.SIGTERM, signal.SIGTERM), 143), ((signal.SIGINT, signal.SIGINT), 130)])
def test_impatience_ends_all_processes(tmp_path: Path, dataset: Dataset, numbers: tuple[signal.Signals, ...], code: int) -> None:
    process = launch(tmp_path, dataset, DEAF)
    ready(tmp_path, process)
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.3)
    assert process.wait(timeout=300) == code
    for file in tmp_path.glob("ready-*"):
        assert not Path("/proc", file.read_text()).exists()
