"""The cost of a reader at n, 2n and 4n of its input, for the tests of its growth.

CPU seconds and peak memory of a process of its own: a copy of a process that has imported most tools (tests/train/nursery.py).
Linear growth costs twice as much more from 2n to 4n as from n to 2n, quadratic growth four times; at most three times is allowed.
Less than 0.3 s or 40 MiB between n and 4n is no growth, and 2n is not read then.
"""

import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path

import nursery
import pytest

# What the process and its children needed; a copy's figures begin at its start.
MEASURE = """
import resource, runpy, sys
del sys.argv[0]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
finally:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    print(seconds, max(usage.ru_maxrss for usage in usages) // 1024, file=open("usage", "w"))
"""
NOISE = NOISE_SECONDS, NOISE_MIB = 0.3, 40
MOST_GROWTH = 3.0
TRIES = 3


@dataclasses.dataclass(frozen=True)
class Reader:
    """`write` makes an input of size n in a directory, and returns the command line that reads it."""

    name: str
    size: int
    write: Callable[[Path, int], str]

    def __str__(self) -> str:
        return self.name


def step(number: int) -> str:
    return (
        f" [2026-11-28 10:{number // 60 % 60:02d}:{number % 60:02d}] iteration {number:8d}/ 1000000 |"
        f" elapsed time per iteration (ms): 100.0 | lm loss: 5.0{number % 100000:05d}E+00 | grad norm: 1.000 |\n"
    )


def of_log(command: str, content: Callable[[int], str]) -> Callable[[Path, int], str]:
    def write(directory: Path, size: int) -> str:
        (directory / "run.log").write_text(content(size))
        return f"lt-monitor {command} run.log"

    return write


def make(directory: Path) -> Path:
    directory.mkdir()
    return directory


def cost(reader: Reader, directory: Path, size: int) -> tuple[float, float]:
    """CPU seconds and MiB of memory to read an input of this size."""
    command = reader.write(make(directory), size)
    tool, *words = command.split()
    copy = [nursery.light_python(), "-c", MEASURE, tool.replace("-", "_"), *words]
    done = subprocess.run(copy, cwd=directory, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1, 3, 65, 66, 75, 78), f"ended with {done.returncode}: {done.stderr}"
    seconds, mebibytes = (directory / "usage").read_text().split()
    return float(seconds), float(mebibytes)


def grows(once: tuple[float, float], four_times: tuple[float, float]) -> bool:
    return any(last - first > noise for first, last, noise in zip(once, four_times, NOISE, strict=True))


def growth(costs: list[float], noise: float) -> float:
    once, twice, four_times = costs
    return (four_times - twice) / max(twice - once, noise / 6) if four_times - once > noise else 0.0


def check(reader: Reader, directory: Path) -> None:
    """Fail if the cost grows faster than the input in each of three tries."""
    if "preprocess" in reader.write(make(directory / "compiled"), 10):
        cost(reader, directory / "again", 10)
    for attempt in range(TRIES):
        once, four_times = (cost(reader, directory / f"{attempt}-{factor}", factor * reader.size) for factor in (1, 4))
        if not grows(once, four_times):
            return
        costs = [once, cost(reader, directory / f"{attempt}-2", 2 * reader.size), four_times]
        seconds, mebibytes = ([of_size[which] for of_size in costs] for which in (0, 1))
        if growth(seconds, NOISE_SECONDS) < MOST_GROWTH and growth(mebibytes, NOISE_MIB) < MOST_GROWTH:
            return
    pytest.fail(f"{reader}: {seconds} CPU s and {mebibytes} MiB for {reader.size} times 1, 2 and 4")
