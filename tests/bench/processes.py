"""Run a command and say what it took: wall time, CPU time and memory of the command and all its children."""

import dataclasses
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SAMPLE_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Usage:
    """`peak_bytes` is the most that the first process held, or all together at one of the samples, whichever is more.

    What processes share counts once (PSS).
    """

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int


class Failed(Exception):
    """A command ended with an error."""


def _tree(root: int) -> Iterator[int]:
    """The process and its descendants."""
    yield root
    try:
        for task in os.listdir(f"/proc/{root}/task"):
            for child in Path(f"/proc/{root}/task/{task}/children").read_text().split():
                yield from _tree(int(child))
    except OSError:  # it ended meanwhile
        return


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _high_water_bytes(pid: int) -> int:
    """The most that a process held so far. The kernel's ru_maxrss will not do: it counts what the parent held at the fork."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def run(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> Usage:
    """Run a command to its end; its output is shown when it fails. Raises Failed."""
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if environment is None else os.environ | dict(environment),
        )
        sampled = largest = 0
        while True:
            deadline = time.perf_counter() + SAMPLE_SECONDS
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            while not pid and time.perf_counter() < deadline:
                time.sleep(0.01)
                largest = max(largest, _high_water_bytes(process.pid))
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            sampled = max(sampled, sum(_proportional_bytes(one) for one in _tree(process.pid)))
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            tail = output.read().decode(errors="replace")[-2000:]
            raise Failed(f"{' '.join(map(str, command))}: exit {process.returncode}\n{tail}")
    return Usage(wall, usage.ru_utime + usage.ru_stime, max(sampled, largest))
