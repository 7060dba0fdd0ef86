"""How long a run on this machine is without training after a rank has died or hangs, and how it came back.

    python tests/train/gpu_recovery.py               # one rank on each GPU
    python tests/train/gpu_recovery.py --cpu         # four gloo ranks
    python tests/train/gpu_recovery.py --layout tp   # tensor-parallel instead of data-parallel, "pp" and "fsdp" as well

Not a part of the test session, whose tests of the same kill ranks on a CPU. Prints for a SIGKILL of the last rank, and of the
first, which serves the store, the seconds to the next step that was not completed before, whether the other ranks went on in
their processes or all started anew, what the log says of it, and the largest difference between the losses and those of an
undisturbed run; for a SIGSTOP of the last rank the same from the moment when the watchdog names it.
And the seconds from SIGKILL of the last rank to the end of a run that is not started again, which fails above 30. On GPUs all of
these run at the same time, two minutes in all: the model is small.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from running import environment, losses, ranks_of

from lt_train.process.device import gpu_count

CPU_RANKS = 4
STEPS, INTERVAL = 60, 10
STOPPED_AT = INTERVAL + 5
HANG_MINUTES = "0.3"
LONGEST_SECONDS = 300
# What tells how a run came back.
TOLD = r"suspect rank|hung and was ended|was ended by|go on in their|starting the ranks again|recovered|error:"
LAYOUTS = {
    "dp": ("--use-distributed-optimizer",),
    "tp": ("--tensor-model-parallel-size", "RANKS", "--sequence-parallel"),
    "pp": ("--pipeline-model-parallel-size", "RANKS"),
    "fsdp": ("--use-torch-fsdp2",),
    "cp": ("--context-parallel-size", "2"),
}
LONGEST_END_SECONDS = 30
MODEL = (
    *("--mock-data", "--model", "tiny", "--num-layers", "4", "--seq-length", "128", "--micro-batch-size", "1"),
    *("--train-iters", str(STEPS), "--save-interval", str(INTERVAL), "--log-interval", "1", "--eval-iters", "0"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help=f"{CPU_RANKS} gloo ranks instead of GPUs")
    parser.add_argument("--layout", choices=LAYOUTS, default="dp")
    arguments = parser.parse_args()
    ranks = CPU_RANKS if arguments.cpu else gpu_count()
    if ranks < 2:
        print(f"two GPUs are needed, and here are {ranks}")
        return 2
    where = ("--device", "cpu" if arguments.cpu else "cuda", "--ranks", str(ranks))
    common = (*MODEL, *LAYOUTS[arguments.layout], *where, "--global-batch-size", str(2 * ranks), "--max-restarts", "3")
    common = tuple(option.replace("RANKS", str(ranks)) for option in common)
    is_good = True
    cases = ((signal.SIGSTOP, ranks - 1), (signal.SIGKILL, ranks - 1), (signal.SIGKILL, 0))
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(1 if arguments.cpu else None) as pool:
        still = Path(directory, "still")
        undisturbed = pool.submit(lambda: _ended(start(still, *common)))
        places = {case: Path(directory, f"{case[0].name}-{case[1]}") for case in cases}
        recoveries = {
            (number, rank): pool.submit(seconds_to_the_next_step, place, rank, number, *common)
            for (number, rank), place in places.items()
        }
        end = pool.submit(seconds_to_the_end, Path(directory, "ended"), ranks - 1, *common, "--max-restarts", "0")
        undisturbed.result()
        expected = losses(still)
        for (number, rank), recovery in recoveries.items():
            what = f"{number.name} of rank {rank} of {ranks}"
            place = places[number, rank]
            try:
                seconds = recovery.result()
            except RuntimeError as error:
                print(f"{what}: the run did not come back\n{error}", flush=True)
                is_good = False
                continue
            found, log = losses(place), (place / "log").read_text()
            difference = max(abs(loss - expected[key]) for key, loss in found.items())
            has_stayed = "the other ranks go on in their processes" in log
            way = "in their processes" if has_stayed else "ALL RANKS STARTED ANEW"
            print(f"{what}: {seconds:.1f} s to the next step, {way}, losses differ by {difference:.1e}")
            print(*(f"    {line}" for line in log.splitlines() if re.search(TOLD, line)), sep="\n", flush=True)
            is_good = is_good and has_stayed and found.keys() == expected.keys()
        end_seconds = end.result()
        print(f"SIGKILL of rank {ranks - 1} of {ranks}, not started again: ended after {end_seconds:.1f} s", flush=True)
    return 0 if is_good and end_seconds <= LONGEST_END_SECONDS else 1


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


def seconds_to_the_next_step(place: Path, rank: int, number: signal.Signals, *options: str) -> float:
    """From the signal to `rank`, or where it only stops it from the report that names it, to a step that was not completed
    before. The run then goes on to its end.
    """
    run = start(place, *options, "--distributed-timeout-minutes", HANG_MINUTES)
    since = seconds = 0.0
    last = 0
    for step in steps(place, run):
        if since and step > last:
            seconds = time.monotonic() - since
            break
        last = max(last, step)
        if step == STOPPED_AT and not since:
            os.kill(ranks_of(run.pid)[rank], number)
            since = time.monotonic()
            while number == signal.SIGSTOP and run.poll() is None and "suspect rank" not in (place / "log").read_text():
                time.sleep(0.01)
                since = time.monotonic()
    if _ended(run) or not seconds:
        raise RuntimeError((place / "log").read_text()[-4000:])
    return seconds


def seconds_to_the_end(place: Path, rank: int, *options: str) -> float:
    """From the death of `rank` to the end of the run."""
    run = start(place, *options)
    killed = 0.0
    for step in steps(place, run):
        if step == STOPPED_AT:
            os.kill(ranks_of(run.pid)[rank], signal.SIGKILL)
            killed = time.monotonic()
            break
    _ended(run)
    return time.monotonic() - killed


if __name__ == "__main__":
    sys.exit(main())
