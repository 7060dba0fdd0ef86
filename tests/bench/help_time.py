"""How long `--help` and `--version` of each tool take beyond `python -c "import click"`.

Medians of interleaved runs: whatever else slows the machine slows all of them. A shell completes nothing and a person waits
while this runs, so more than LIMIT_MS above the bare interpreter fails.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 20
LIMIT_MS = 150.0
TOOLS = ("lt-preprocess", "lt-train", "lt-convert", "lt-monitor")
BINARIES = Path(sys.executable).parent


def commands() -> dict[str, list[str]]:
    baseline = {"python -c 'import click'": [sys.executable, "-c", "import click"]}
    return baseline | {f"{tool} {option}": [str(BINARIES / tool), option] for tool in TOOLS for option in ("--help", "--version")}


def milliseconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1000


def main() -> int:
    measured: dict[str, list[float]] = {name: [] for name in commands()}
    for command in commands().values():
        milliseconds(command)  # compiles the modules, fills the file cache
    for _ in range(RUNS):
        for name, command in commands().items():
            measured[name].append(milliseconds(command))
    medians = {name: statistics.median(times) for name, times in measured.items()}
    baseline = next(iter(medians.values()))
    print(f"{'command':<28} {'median ms':>10} {'above click ms':>15}")
    for name, median in medians.items():
        print(f"{name:<28} {median:>10.1f} {median - baseline:>15.1f}")
    slow = [name for name, median in medians.items() if median - baseline > LIMIT_MS]
    if slow:
        print(f"more than {LIMIT_MS:.0f} ms above the bare interpreter: {', '.join(slow)}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
