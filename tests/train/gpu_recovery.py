"""How long a run on this machine is without training after a rank has died, and whether a rank that hangs is named.

    python tests/train/gpu_recovery.py               # one rank on each GPU
    python tests/train/gpu_recovery.py --cpu         # four gloo ranks

Not a part of the test session, whose tests of the same kill and stop ranks on a CPU. Prints the seconds from SIGKILL of the last
rank to the next completed step, the largest difference between the losses of that run and those of an undisturbed one, and the
seconds from SIGSTOP of a rank to the end of the run whose report names it. Then, under context parallelism, those from SIGKILL of
a rank to the end of a run that is not started again, which fails above 30, and from SIGSTOP.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from running import environment, losses, ranks_of

from lt_shared.console import ExitCode
from lt_train.runtime.device import gpu_count

CPU_RANKS = 4
STEPS, INTERVAL = 60, 10
KILLED_AT = INTERVAL + 5
HANG_MINUTES = "0.3"
LONGEST_SECONDS = 300
LONGEST_END_SECONDS = 30
MODEL = (
    *("--mock-data", "--model", "tiny", "--num-layers", "4", "--seq-length", "128", "--micro-batch-size", "1"),
    *("--train-iters", str(STEPS), "--save-interval", str(INTERVAL), "--log-interval", "1", "--eval-iters", "0"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help=f"{CPU_RANKS} gloo ranks instead of GPUs")
    on_a_cpu = parser.parse_args().cpu
    ranks = CPU_RANKS if on_a_cpu else gpu_count()
    if ranks < 2:
        print(f"two GPUs are needed, and here are {ranks}")
        return 2
    common = (*MODEL, "--device", "cpu" if on_a_cpu else "cuda", "--ranks", str(ranks), "--global-batch-size", str(2 * ranks))
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        still, killed, stopped = (place / name for name in ("still", "killed", "stopped"))
        _ended(start(still, *common))
        seconds = seconds_to_the_next_step(killed, *common)
        expected, found = losses(still), losses(killed)
        difference = max(abs(loss - expected[key]) for key, loss in found.items())
        print(
            f"killed rank {ranks - 1} of {ranks}: {seconds:.1f} s to the next step, losses differ by {difference:.1e}", flush=True
        )
        hung_seconds, report = seconds_to_the_report(stopped, ranks - 1, *common)
        print(f"stopped rank {ranks - 1} of {ranks}: ended after {hung_seconds:.1f} s: {report or 'the rank was not named'}")
        shared = (*common, "--context-parallel-size", "2")
        end_seconds = seconds_to_the_end(place / "shared", *shared)
        print(f"killed rank {ranks - 1} of {ranks} under context parallelism: ended after {end_seconds:.1f} s", flush=True)
        hung_seconds, also = seconds_to_the_report(place / "shared-stopped", ranks - 1, *shared)
        print(
            f"stopped rank {ranks - 1} of {ranks} likewise: ended after {hung_seconds:.1f} s: {also or 'the rank was not named'}"
        )
    return 0 if report and also and end_seconds <= LONGEST_END_SECONDS and found.keys() == expected.keys() else 1


def start(place: Path, *options: str) -> subprocess.Popen[bytes]:
    place.mkdir()
    command = [sys.executable, "-m", "lt_train", *options, "--save", str(place)]
    with (place / "log").open("w") as log:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=environment() | {"OMP_NUM_THREADS": "1"})


def _ended(run: subprocess.Popen[bytes]) -> int:
    try:
        return run.wait(timeout=LONGEST_SECONDS)
    finally:
        run.kill()


def steps(place: Path, run: subprocess.Popen[bytes]) -> Iterator[int]:
    """The steps of the log as they come, until the run ends."""
    with (place / "log").open() as log:
        while run.poll() is None:
            if not (line := log.readline()):
                time.sleep(0.01)
            elif step := re.search(r"iteration +(\d+)/", line):
                yield int(step[1])


def signal_last_rank(run: subprocess.Popen[bytes], number: signal.Signals) -> float:
    """When it was sent."""
    ranks = ranks_of(run.pid)
    os.kill(ranks[max(ranks)], number)
    return time.monotonic()


def seconds_to_the_next_step(place: Path, *options: str) -> float:
    """From the death of the last rank to a step that was not completed before. The run then goes on to its end."""
    run = start(place, *options, "--max-restarts", "3")
    killed = seconds = 0.0
    last = 0
    for step in steps(place, run):
        if killed and step > last:
            seconds = time.monotonic() - killed
            break
        last = max(last, step)
        if step == KILLED_AT and not killed:
            killed = signal_last_rank(run, signal.SIGKILL)
    if _ended(run) or not seconds:
        raise RuntimeError((place / "log").read_text()[-4000:])
    return seconds


def seconds_to_the_end(place: Path, *options: str) -> float:
    """From the death of the last rank to the end of the run."""
    run = start(place, *options)
    killed = next(signal_last_rank(run, signal.SIGKILL) for step in steps(place, run) if step == KILLED_AT)
    _ended(run)
    return time.monotonic() - killed


def seconds_to_the_report(place: Path, rank: int, *options: str) -> tuple[float, str | None]:
    """From the stop of `rank`, the last, to the end of the run, and the sentence that names it."""
    run = start(place, *options, "--distributed-timeout-minutes", HANG_MINUTES)
    stopped = next(signal_last_rank(run, signal.SIGSTOP) for step in steps(place, run) if step == KILLED_AT)
    code = _ended(run)
    named = re.search(rf"suspect rank {rank}\b.*", (place / "log").read_text())
    return time.monotonic() - stopped, named[0] if named and code == ExitCode.TRY_AGAIN else None


if __name__ == "__main__":
    sys.exit(main())
