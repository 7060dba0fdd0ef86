"""Running lt-train as a user does, on a model so small that a run takes seconds."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import nursery

from lt_shared.contracts import manifest

# Small and short, so that a run takes seconds; --log-interval 1 puts the exact loss of every step into metrics.jsonl.
SMALL = (
    *("--model", "tiny", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128"),
    *("--seq-length", "64", "--micro-batch-size", "2", "--global-batch-size", "8", "--log-interval", "1"),
    *("--eval-iters", "1", "--device", "cpu"),
)

# For runs of which each loss is compared with another run's. The second step shows the first update, the evaluation the second
# update; one rank has two micro batches a step.
BRIEF = (
    *("--seq-length", "32", "--micro-batch-size", "2", "--global-batch-size", "4", "--train-iters", "2", "--lr", "1e-3"),
    *("--lr-warmup-iters", "0", "--log-interval", "1", "--eval-iters", "1", "--device", "cpu"),
)
BRIEF_LOSSES = {("step", 1), ("step", 2), ("eval", 2)}

STEPS = (
    *("--train-iters", "12", "--save-interval", "4", "--eval-interval", "5", "--lr", "1e-3"),
    *("--seq-length", "16", "--global-batch-size", "4"),
)
RUNS = {
    "one": (*SMALL, *STEPS, "--ranks", "1"),
    "short": (*SMALL, "--train-iters", "3", "--ranks", "2"),
    # The loss scale begins too high: some steps are skipped. A line gives the mean over the steps since the line before, and
    # checkpoints lie between two lines.
    "two": (
        *(*SMALL, *STEPS, "--ranks", "2", "--log-interval", "5", "--use-distributed-optimizer"),
        *("--fp16", "--initial-loss-scale", str(2**24), "--hysteresis", "1"),
    ),
}
FAULTS = Path(__file__).parent / "faults"


@dataclasses.dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def manifest(self) -> list[manifest.Entry]:
        return manifest.parse(self.out.splitlines(), "stdout")


def environment() -> dict[str, str]:
    """The present environment without anything that would make lt-train a rank or change its options."""
    left_out = ("RANK", "LOCAL_RANK", "LT_DEBUG")
    return {key: value for key, value in os.environ.items() if key not in left_out and not key.startswith(("LT_TRAIN", "SLURM"))}


def faulty(fault: str) -> dict[str, str]:
    """Variables for `run` that make the fault happen; see faults/sitecustomize.py."""
    return {"LT_FAULT": fault, "PYTHONPATH": os.pathsep.join([str(FAULTS), os.environ.get("PYTHONPATH", "")])}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "lt_train", *arguments]


def quick_command(*arguments: str) -> list[str]:
    """For `train`."""
    return [nursery.python(), "-m", "lt_train", *arguments]


def ranks_of(launcher: int) -> dict[int, int]:
    """Process ids of the ranks that a launcher has started. A spare process, which is no rank yet, is not among them."""
    found = {}
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        variables = dict(entry.split("=", 1) for entry in Path(f"/proc/{child}/environ").read_text().split("\0") if "=" in entry)
        if "RANK" in variables:
            found[int(variables["RANK"])] = int(child)
    return found


def copied_ranks_in(directory: Path) -> dict[int, int]:
    """Process ids of the ranks that run in a directory, of launchers that `quick_command` has started there."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        # One that has ended meanwhile.
        with contextlib.suppress(OSError):
            name, _, number = (process / "comm").read_text().strip().partition(" ")
            if name == "rank" and (process / "cwd").readlink() == directory and os.getsid(int(process.name)) == int(process.name):
                found[int(number)] = int(process.name)
    return found


def run(*arguments: str, stdin: str = "", **variables: str) -> Result:
    return _run(command(*arguments), stdin, variables)


def train(*arguments: str, stdin: str = "", **variables: str) -> Result:
    """The same without what a start takes, half a second and for runs that get as far as a rank six: see nursery.py."""
    return _run(quick_command(*arguments), stdin, variables)


def _run(command: list[str], stdin: str, variables: dict[str, str]) -> Result:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=900, env=environment() | variables)
    return Result(done.returncode, done.stdout, done.stderr)


def run_tasks(command: list[str], tasks: Iterable[dict[str, str]]) -> list[Result]:
    """The same command at the same time with the variables of each task, as srun starts it."""
    started = [
        subprocess.Popen(command, env=environment() | task, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for task in tasks
    ]
    outputs = [process.communicate(timeout=900) for process in started]
    return [Result(process.returncode, *output) for process, output in zip(started, outputs, strict=True)]


def catches(process: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal, as the kernel says."""
    mask = next(line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)


def losses(run_directory: Path) -> dict[tuple[str, int], float]:
    """The last recorded loss of every step and evaluation of a run, exact."""
    found = {}
    for line in (run_directory / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "loss" in record:
            found[record["kind"], record["step"]] = record["loss"]
    return found
